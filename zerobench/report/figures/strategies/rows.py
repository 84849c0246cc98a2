"""Each measured trial beside the single process that trains the same global batch, and beside `ddp`.

Speed-up is the time that one process takes for a step over the trial's (Hager and Wellein, "Introduction to High
Performance Computing", section 5.3), with the same tokens, precision, optimizer, checkpointing, attention, loss,
compilation and threads of a rank, and the fastest such process where there are several; what differs in these has no
speed-up. Efficiency is
speed-up over ranks, servers and all. Under weak scaling, where the run has a single process that trains one rank's
share, it is the throughput of one rank over that process's.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from zerobench.common.grouped import grouped
from zerobench.config.axes.axes import SPEED
from zerobench.config.derived.strategy import STRATEGIES
from zerobench.config.trial.trial import Compression, TrialSpec
from zerobench.report.figures.parity import Parity
from zerobench.report.figures.strategy_figures import SideFigures
from zerobench.report.figures.trial import TrialFigures


@dataclass(frozen=True)
class ComparedSide:
    """One side of a trial, beside the others of its work. None: not available, or there is nothing to compare with."""

    trial: TrialFigures
    figures: SideFigures
    speed_up: float | None
    weak_efficiency: float | None
    saved_fraction: float | None
    """Share of the model states that a rank of `ddp` holds and this one does not; below 0 where it holds more."""

    @property
    def spec(self) -> TrialSpec:
        return self.trial.spec

    @property
    def label(self) -> str:
        return self.trial.label

    @property
    def parity(self) -> Parity | None:
        return self.trial.parity

    @property
    def is_reference(self) -> bool:
        """True for the single process."""
        return is_reference(self.spec)

    @property
    def efficiency(self) -> float | None:
        """Speed-up over ranks."""
        return None if self.speed_up is None else self.speed_up / self.spec.world_size

    @property
    def verdict(self) -> str:
        """Verdict of the losses and the gradients."""
        if self.figures.is_server or self.parity is None:
            return "reference" if self.is_reference else "-"
        if not self.parity.is_judged and self.parity.agrees:
            return "by design"
        return "agrees" if self.parity.agrees else "disagrees"

    @property
    def is_believed(self) -> bool:
        """False if its losses or gradients disagree with its reference's."""
        return self.trial.is_believed


def is_reference(spec: TrialSpec) -> bool:
    """True for the one process that others are compared with."""
    info = STRATEGIES.get(spec.strategy)
    return info is not None and info.is_reference


def compare(trials: Iterable[TrialFigures]) -> list[ComparedSide]:
    """The rows of all sides whose work a single process of the same run did too, in their order.

    Repeats of a trial stand beside each other.
    """
    sides = [_Side(trial, figures) for trial in trials for figures in trial.compared]
    groups = _Groups(sides)
    return [
        ComparedSide(*side, groups.speed_up(side), groups.weak_efficiency(side), groups.saved(side))
        for side in sides
        if groups.has_reference(side)
    ]


def is_comparison(rows: Sequence[ComparedSide]) -> bool:
    """True if `rows` has anything but ZeRO stages."""
    return any(row.spec.zero_stage is None and not row.is_reference for row in rows)


class _Side(NamedTuple):
    trial: TrialFigures
    figures: SideFigures

    def work(self, batch: int) -> Hashable:
        """Key of the work that must be equal for seconds to be compared, with a global batch of that size."""
        spec = self.trial.spec
        same = spec.model_copy(
            update={"num_nodes": 1, "gpus_per_node": 1, "micro_batch_size": batch, "gradient_accumulation_steps": 1}
        ).parity_hash
        return (self.trial.run_id, self.figures.device_name, same, *(getattr(spec, axis) for axis in SPEED))


class _Groups:
    """The single processes and the plain data parallelism of each piece of work."""

    def __init__(self, sides: Sequence[_Side]) -> None:
        self._work = {id(side): side.work(side.trial.spec.global_batch_size) for side in sides}
        specs = [(side, side.trial.spec) for side in sides]
        plain_ddp = [s for s, spec in specs if spec.strategy == "ddp" and spec.compression is Compression.NONE]
        self._singles = grouped([s for s, spec in specs if is_reference(spec)], lambda side: self._work[id(side)])
        self._ddp = grouped(plain_ddp, lambda side: self._work[id(side)])

    def has_reference(self, side: _Side) -> bool:
        return self._work[id(side)] in self._singles

    def speed_up(self, side: _Side) -> float | None:
        """None on a server, which trains nothing, and for a throughput that is void."""
        single_s, figures = self._single_s(self._work[id(side)]), side.figures
        if single_s is None or figures.step_s is None or figures.tokens_per_s is None:
            return None
        return single_s / figures.step_s

    def weak_efficiency(self, side: _Side) -> float | None:
        spec, tokens_per_s = side.trial.spec, side.figures.tokens_per_s
        share, rest = divmod(spec.global_batch_size, spec.world_size)
        if rest or spec.world_size == 1 or tokens_per_s is None:
            return None
        single_s = self._single_s(side.work(share))
        tokens = share * spec.sequence_length
        return None if single_s is None else tokens_per_s / spec.world_size * single_s / tokens

    def saved(self, side: _Side) -> float | None:
        known = [ddp for ddp in self._ddp.get(self._work[id(side)], []) if ddp.figures.states_bytes]
        known.sort(key=lambda ddp: ddp.trial.spec.world_size != side.trial.spec.world_size)
        if not known or side.figures.states_bytes is None:
            return None
        return 1 - side.figures.states_bytes / (known[0].figures.states_bytes or 1)

    def _single_s(self, work: Hashable) -> float | None:
        singles = [side.figures for side in self._singles.get(work, [])]
        return min((one.step_s for one in singles if one.step_s is not None and one.tokens_per_s), default=None)
