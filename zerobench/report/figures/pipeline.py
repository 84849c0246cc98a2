"""The stages of a pipeline: what each holds, keeps for backward passes and waits for, beside what theory says.

Each stage is a rank of its own kind, so no one of them stands for the others: the first keeps the most activations
under 1F1B, the last has the logits, and how long each waits is the pipeline's bubble.
"""

from dataclasses import dataclass

from zerobench.common.vocabulary import Category, Place, StepKind
from zerobench.config.derived.pipeline_steps import bubble_fraction, pipeline_bytes_per_step
from zerobench.config.derived.strategy import STRATEGIES
from zerobench.records.instants import ModelStates, model_states, peak_instant
from zerobench.records.records import RankRecord
from zerobench.records.trials import Trial, completed
from zerobench.report.figures.stats import median


@dataclass(frozen=True)
class StageRow:
    """One stage of a trial. None: not available."""

    rank: int
    blocks: str | None
    """`0-2`: the first and the last of its blocks."""
    num_params: int | None
    """Parameters of the stage alone."""
    states: ModelStates | None
    peak_bytes: int | None
    """Device memory of a steady step."""
    activations_bytes: int | None
    """Largest in a steady step."""
    in_flight: int | None
    """Micro-batches whose activations it keeps at once, at most."""
    step_s: float | None
    """Median over the timed steps."""
    wait_s: float | None
    """The part of it in which the rank neither computes nor updates."""
    ideal_fraction: float
    """The bubble if every stage took equally long (config/derived/pipeline_steps.py)."""
    passed_bytes: int
    """Sent and received in the steady step."""
    formula_bytes: int
    """The same by formula."""

    @property
    def bubble_fraction(self) -> float | None:
        """Waiting time over step time, as it was measured."""
        return self.wait_s / self.step_s if self.wait_s is not None and self.step_s else None


def stages(trial: Trial) -> list[StageRow]:
    """The stages of a completed trial whose ranks are stages, those that were run; empty for all others."""
    info = STRATEGIES.get(trial.spec.strategy)
    divides = info is not None and info.divides_layers
    return [_stage(trial, rank) for rank in trial.ranks] if divides and completed(trial) else []


def _stage(trial: Trial, rank: RankRecord) -> StageRow:
    recorded = rank.effective_config.get("pipeline")
    part = recorded if isinstance(recorded, dict) else {}
    waits = [time.wait_s for time in rank.step_times if time.wait_s is not None]
    peak = peak_instant(rank, StepKind.STEADY, Place.DEVICE)
    passed = [row for row in rank.collectives if row.step is StepKind.STEADY]
    return StageRow(
        rank=rank.rank,
        blocks=_blocks(part.get("blocks")),
        num_params=_whole(part.get("parameters")),
        states=model_states(rank),
        peak_bytes=None if peak is None else peak.total_bytes,
        activations_bytes=_largest(rank, Category.ACTIVATIONS),
        in_flight=_whole(part.get("micro_batches_in_flight")),
        step_s=median([time.step_s for time in rank.step_times]),
        wait_s=median(waits),
        ideal_fraction=bubble_fraction(trial.spec),
        passed_bytes=sum(row.message_bytes for row in passed if row.kind in {"send", "recv"}),
        formula_bytes=pipeline_bytes_per_step(trial.spec, rank.rank),
    )


def _blocks(value: object) -> str | None:
    match value:
        case [int(begin), int(end)]:
            return f"{begin}-{end - 1}"
    return None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _largest(rank: RankRecord, category: Category) -> int | None:
    rows = [row for row in rank.memory if (row.step, row.category) == (StepKind.STEADY, category)]
    return max((row.own_peak_bytes for row in rows if row.own_peak_bytes is not None), default=None)
