"""Sides of trials with round numbers, to compare: a model of a million parameters in fp32, 24 sequences a step."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.report.sample_run import SampleTrial, model, trial_record
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.instants import ModelStates
from zerobench.report.figures.make import trial_figures
from zerobench.report.figures.parity import Parity
from zerobench.report.figures.strategies.rows import ComparedSide, compare
from zerobench.report.figures.strategy_figures import SideFigures
from zerobench.report.figures.trial import TrialFigures

P = 1_000_000
WEIGHTS = 4 * P


def spec(strategy: str, ranks: int = 2, batch: int = 24, **fields: Any) -> TrialSpec:
    """A trial on `ranks` ranks with one micro-batch each."""
    sized = {"gpus_per_node": ranks, "micro_batch_size": batch // ranks, "precision": "fp32", "sequence_length": 100}
    small = model("gpt2-tiny", layers=2, width=128)
    return TrialSpec.model_validate({"model": small, "strategy": strategy, **sized, **fields})


def figures(asked: TrialSpec, step_s: float | None = 1.0, **known: Any) -> TrialFigures:
    """A trial and its workers' side; `known` says what else there is."""
    states = known.pop("states", (WEIGHTS, WEIGHTS, 2 * WEIGHTS))
    seconds = {"step_s": step_s, "spread_s": None if step_s is None else step_s / 100}
    tokens = None if step_s is None else asked.global_batch_size * asked.sequence_length / step_s
    usual: dict[str, Any] = {
        "role": "worker",
        "num_ranks": asked.world_size,
        "device_name": "cpu",
        "num_params": P,
        "tokens_per_s": tokens,
        "sent_bytes": None,
        "received_bytes": None,
        "formula_sent_bytes": None,
        "formula_received_bytes": None,
        "states": None if states is None else ModelStates(0, *states),
        "peak_bytes": None,
        "in_flight_fraction": None,
        "exposed_fraction": None,
        "wait_fraction": None,
        "staleness": None,
    }
    trial = trial_figures(SampleTrial(asked, trial_record(asked), []))
    return replace(trial, compared=[SideFigures(**{**usual, **seconds, **known})])


def rows(
    *trials: TrialFigures, parity: dict[str, float] | None = None, norm: float | None = None
) -> list[ComparedSide]:
    """The sides compared, each called by its strategy and ranks; `parity` are distances of losses by that name, `norm`
    is that of the gradients' norms in each of them.
    """
    named = [(trial, f"{trial.spec.strategy} n{trial.spec.world_size}") for trial in trials]
    judged = {
        name: Parity("reference", distance, 5e-6, 9, norm_difference=norm, norm_tolerance=1e-3)
        for name, distance in (parity or {}).items()
    }
    return compare(trial.named(name, judged.get(name), None) for trial, name in named)


def by_label(found: Sequence[ComparedSide], label: str) -> ComparedSide:
    """The first row of that name."""
    return next(row for row in found if row.label == label)
