"""Sides of trials with round numbers, to compare: a model of a million parameters in fp32, 24 sequences a step."""

from collections.abc import Sequence
from typing import Any

from tests.report.sample_run import RUN_ID, model
from zerobench.report.memory_view import ModelStates
from zerobench.report.parity import Parity
from zerobench.report.strategies.figures import Figures
from zerobench.report.strategies.rows import ComparedSide, compare
from zerobench.spec.trial import TrialSpec

P = 1_000_000
WEIGHTS = 4 * P


def spec(strategy: str, ranks: int = 2, batch: int = 24, **fields: Any) -> TrialSpec:
    """A trial on `ranks` ranks with one micro-batch each."""
    sized = {"gpus_per_node": ranks, "micro_batch_size": batch // ranks, "precision": "fp32", "sequence_length": 100}
    small = model("gpt2-tiny", layers=2, width=128)
    return TrialSpec.model_validate({"model": small, "strategy": strategy, **sized, **fields})


def figures(asked: TrialSpec, step_s: float | None = 1.0, **known: Any) -> Figures:
    """Its workers' side; `known` says what else there is."""
    states = known.pop("states", (WEIGHTS, WEIGHTS, 2 * WEIGHTS))
    seconds = {"step_s": step_s, "spread_s": None if step_s is None else step_s / 100}
    tokens = None if step_s is None else asked.global_batch_size * asked.sequence_length / step_s
    usual: dict[str, Any] = {
        "run_id": RUN_ID,
        "trial_id": asked.trial_id,
        "spec": asked,
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
    return Figures(**{**usual, **seconds, **known})


def rows(*sides: Figures, parity: dict[str, float] | None = None, norm: float | None = None) -> list[ComparedSide]:
    """The sides compared, each called by its strategy and ranks; `parity` are distances of losses by that name, `norm`
    is that of the gradients' norms in each of them.
    """
    names = {(one.run_id, one.trial_id): f"{one.spec.strategy} n{one.spec.world_size}" for one in sides}
    judged = {
        key: Parity("reference", distance, 5e-6, 9, norm_difference=norm, norm_tolerance=1e-3)
        for key, name in names.items()
        if (distance := (parity or {}).get(name)) is not None
    }
    return compare(sides, names, judged)


def by_label(found: Sequence[ComparedSide], label: str) -> ComparedSide:
    """The first row of that name."""
    return next(row for row in found if row.label == label)
