"""Bytes of host memory for each parameter of the model, by who holds them: at the end of start-up and in steady steps.

A rank holds its part of offloaded states: what one rank holds, times all ranks, over the model's parameters, so that
fp32 master weights are 4 on any number of GPUs and what every rank holds whole counts as often as it lies there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zerobench.records import Category, MemoryRow, Phase, Place, StepKind
from zerobench.report.trials import Trial, num_params
from zerobench.spec.trial import Offload

_HOLDERS = {
    Category.MASTER_WEIGHTS: "fp32 masters",
    Category.GRADIENTS: "fp32 gradients",
    Category.FIRST_MOMENT: "first moment",
    Category.SECOND_MOMENT: "second moment",
    Category.STAGING: "staging copies",
    Category.ALLOCATOR_ROUNDING: "pinned, rounded to 2^n",
    Category.PARAMETERS: "parameters",
}
_ALL = "together"
_LEAST = 0.005
"""Bytes a parameter below which a row says nothing."""


@dataclass(frozen=True)
class Holder:
    """One line: bytes a parameter; None was not seen."""

    name: str
    load_peak: float | None
    """At the worst moment of start-up."""
    load_end: float | None
    steady: float | None
    """At the worst moment of a steady step."""
    rank_bytes: int | None
    node_bytes: int | None
    """Of a steady step, by all ranks of a node."""


def holders(trial: Trial) -> Iterator[Holder]:
    """The lines of a trial that offloads states, the largest first, all together at the end."""
    spec, total = trial.spec, num_params(trial)
    if {spec.offload_optimizer, spec.offload_param} == {Offload.NONE} or not total or not trial.ranks:
        return
    rows = [row for row in trial.ranks[0].memory if row.place is Place.HOST]
    share = spec.world_size / total
    categories = [category for category in Category if category is not Category.REST_OF_PROCESS]
    lines = [_holder(category, rows, share, spec.gpus_per_node) for category in categories]
    shown = [holder for holder in lines if max(holder.load_peak or 0, holder.steady or 0) >= _LEAST]
    yield from sorted(shown, key=lambda holder: (holder.name == _ALL, -(holder.steady or 0)))


def _holder(category: Category, rows: Sequence[MemoryRow], share: float, ranks_per_node: int) -> Holder:
    mine = [row for row in rows if row.category is category]
    is_whole = category is Category.TOTAL
    own = [row for row in rows if is_whole and row.category is Category.REST_OF_PROCESS]
    init = [(row, _less(row, own)) for row in mine if row.phase is Phase.INIT]
    steady = [(row, _less(row, own)) for row in mine if row.step is StepKind.STEADY]
    held = max(((row.at_peak_bytes or row.live_bytes) - less for row, less in steady), default=None)
    return Holder(
        name=_ALL if is_whole else _HOLDERS.get(category, category.value.replace("_", " ")),
        load_peak=max(((row.at_peak_bytes or row.live_bytes) - less for row, less in init), default=0) * share,
        load_end=max((row.live_bytes - less for row, less in init), default=0) * share,
        steady=None if held is None else held * share,
        rank_bytes=held,
        node_bytes=None if held is None else held * ranks_per_node,
    )


def _less(row: MemoryRow, own: Sequence[MemoryRow]) -> int:
    """What the process itself holds of a total."""
    alike = (total for total in own if (total.step, total.phase) == (row.step, row.phase))
    return max((total.at_peak_bytes or total.live_bytes for total in alike), default=0)
