"""Bytes of host memory for each parameter of the model, by who holds them: at the end of start-up and in steady steps.

A rank holds its part of offloaded states: what one rank holds, times all ranks, over the model's parameters, so that
fp32 master weights are 4 on any number of GPUs and what every rank holds whole counts as often as it lies there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.records.records import MemoryRow
from zerobench.records.trials import Trial, num_params

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
PAGE_CACHE = "files, as page cache"
_LAST = {_ALL: 1, PAGE_CACHE: 2}
_LEAST = 0.005
"""Bytes a parameter below which a row says nothing."""


@dataclass(frozen=True)
class HeldBytes:
    """Bytes that a holder has at a moment."""

    a_parameter: float
    """Bytes, of all ranks."""
    rank_bytes: int | None
    """On the rank that holds most; None where ranks share it."""
    node_bytes: int
    """Bytes of all ranks of a node."""


@dataclass(frozen=True)
class Holder:
    """One line; None was not seen."""

    name: str
    load: HeldBytes | None
    """At the worst moment of start-up."""
    init: HeldBytes | None
    """At its end."""
    steady: HeldBytes | None
    """At the worst moment of a steady step."""

    @property
    def most(self) -> float:
        """Bytes a parameter at the worst of all moments."""
        return max(held.a_parameter if held is not None else 0.0 for held in (self.load, self.steady))


def holders(trial: Trial) -> Iterator[Holder]:
    """The lines of a trial that offloads states or loads its weights, the largest first, all together at the end.

    Where weights are loaded ranks differ, since one of them may read for all: each counts as it was. Beside ranks on
    CPUs the device's memory is the host's.
    """
    spec, total = trial.spec, num_params(trial)
    if not (spec.offloaded_to or spec.is_loaded) or not total or not trial.ranks:
        return
    ranks = trial.ranks if spec.is_loaded else trial.ranks[:1]
    places = {Place.HOST, Place.DEVICE} if spec.is_loaded and ranks[0].device_type == "cpu" else {Place.HOST}
    rows = [[row for row in rank.memory if row.place in places] for rank in ranks]
    scale = _Scale(spec.world_size / len(ranks) / total, spec.gpus_per_node / len(ranks))
    categories = [category for category in Category if category is not Category.REST_OF_PROCESS]
    lines = [_holder(category, rows, scale) for category in categories]
    shown = [holder for holder in lines if holder.most >= _LEAST]
    mapped = [rank.mapped_peak_bytes for rank in ranks if rank.mapped_peak_bytes]
    if mapped:  # the pages of a file are there once for all ranks of a node
        files = HeldBytes(max(mapped) * spec.num_nodes / total, None, max(mapped))
        shown.append(Holder(PAGE_CACHE, files, HeldBytes(0.0, None, 0), None))
    yield from sorted(
        shown, key=lambda holder: (_LAST.get(holder.name, 0), -(holder.steady.a_parameter if holder.steady else 0.0))
    )


@dataclass(frozen=True)
class _Scale:
    """From bytes of the ranks that were looked at to those of all: for each parameter, and on each node."""

    a_parameter: float
    a_node: float

    def held(self, ranks: Sequence[int]) -> HeldBytes | None:
        """Bytes of all holders, of which those of `ranks` were watched; None without any."""
        if not ranks:
            return None
        return HeldBytes(sum(ranks) * self.a_parameter, max(ranks), round(sum(ranks) * self.a_node))


def _holder(category: Category, ranks: Sequence[Sequence[MemoryRow]], scale: _Scale) -> Holder:
    moments = zip(*(_rank_holders(category, rows) for rows in ranks), strict=True)
    load, init, steady = (scale.held([nbytes for nbytes in moment if nbytes is not None]) for moment in moments)
    name = _ALL if category is Category.TOTAL else _HOLDERS.get(category, category.words)
    return Holder(name, load, init, steady)


def _rank_holders(category: Category, rows: Sequence[MemoryRow]) -> tuple[int, int, int | None]:
    """At the peak of start-up, at its end, at the peak of a steady step."""
    mine = [row for row in rows if row.category is category]
    process = [row for row in rows if category is Category.TOTAL and row.category is Category.REST_OF_PROCESS]
    init = [row for row in mine if row.phase is Phase.INIT]
    steady = [row for row in mine if row.step is StepKind.STEADY]
    return (
        _most(init, process, at_peak=True) or 0,
        _most(init, process, at_peak=False) or 0,
        _most(steady, process, at_peak=True),
    )


def _most(rows: Sequence[MemoryRow], process: Sequence[MemoryRow], *, at_peak: bool) -> int | None:
    """The largest moment of all places together, without what the process itself holds."""
    moments: dict[tuple[StepKind, Phase], int] = {}
    for row in rows:
        nbytes = (row.at_peak_bytes if at_peak else None) or row.live_bytes
        less = _less(row, process) if row.place is Place.HOST else 0
        moments[row.step, row.phase] = moments.get((row.step, row.phase), 0) + nbytes - less
    return max(moments.values(), default=None)


def _less(row: MemoryRow, process: Sequence[MemoryRow]) -> int:
    """The part of a total that the process itself holds."""
    alike = (total for total in process if (total.step, total.phase) == (row.step, row.phase))
    return max((total.at_peak_bytes or total.live_bytes for total in alike), default=0)
