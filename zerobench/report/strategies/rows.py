"""Each measured trial beside the single process that trains the same global batch, and beside `ddp`.

Speed-up is the time that one process takes for a step over the trial's (Hager and Wellein, "Introduction to High
Performance Computing", section 5.3), with the same tokens, precision, optimizer, checkpointing, attention, loss,
compilation and threads of a rank, and the fastest such process where there are several; what differs in these has no
speed-up. Efficiency is
speed-up over ranks, servers and all. Under weak scaling, where the run has a single process that trains one rank's
share, it is the throughput of one rank over that process's.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from zerobench.report.parity import Parity
from zerobench.report.strategies.figures import Figures
from zerobench.spec.strategy import STRATEGIES
from zerobench.spec.trial import Compression, TrialSpec
from zerobench.sweeping.axes import SPEED

Key = tuple[str, str]
"""run_id and trial_id."""


@dataclass(frozen=True)
class ComparedSide:
    """One side of a trial, beside the others of its work. None: not available, or there is nothing to compare with."""

    label: str
    figures: Figures
    parity: Parity | None
    speed_up: float | None
    weak_efficiency: float | None
    saved_fraction: float | None
    """Of the model states that a rank of `ddp` holds, the part that this one does not; below 0 where it holds more."""

    @property
    def spec(self) -> TrialSpec:
        return self.figures.spec

    @property
    def is_reference(self) -> bool:
        """Whether it is the single process."""
        return is_reference(self.spec)

    @property
    def efficiency(self) -> float | None:
        """Speed-up over ranks."""
        return None if self.speed_up is None else self.speed_up / self.spec.world_size

    @property
    def verdict(self) -> str:
        """What the losses and the gradients say."""
        if self.figures.is_server or self.parity is None:
            return "reference" if self.is_reference else "-"
        if not self.parity.is_judged and self.parity.agrees:
            return "by design"
        return "agrees" if self.parity.agrees else "disagrees"

    @property
    def is_believed(self) -> bool:
        """Whether its losses and gradients do not speak against its figures."""
        return self.parity is None or self.parity.agrees


def is_reference(spec: TrialSpec) -> bool:
    """Whether the trial is the one process that others are held against."""
    info = STRATEGIES.get(spec.strategy)
    return info is not None and info.is_reference


def compare(
    figures: Sequence[Figures], labels: Mapping[Key, str], parities: Mapping[Key, Parity | None]
) -> list[ComparedSide]:
    """The rows of all sides whose work a single process of the same run did too, in their order.

    Repeats of a trial stand beside each other; `labels` names all trials, `parities` those that were judged.
    """
    groups = _Groups(figures)
    return [
        ComparedSide(
            label=labels[figure.run_id, figure.trial_id],
            figures=figure,
            parity=parities.get((figure.run_id, figure.trial_id)),
            speed_up=groups.speed_up(figure),
            weak_efficiency=groups.weak_efficiency(figure),
            saved_fraction=groups.saved(figure),
        )
        for figure in figures
        if groups.has_reference(figure)
    ]


def is_comparison(rows: Sequence[ComparedSide]) -> bool:
    """Whether there is something in `rows` that a table of ZeRO's stages does not say already."""
    return any(row.spec.zero_stage is None and not row.is_reference for row in rows)


def _work(figures: Figures, rank_batch: int | None = None) -> Hashable:
    """What must be equal for seconds to be compared; with `rank_batch` for another global batch than the trial's."""
    spec = figures.spec
    batch = spec.global_batch_size if rank_batch is None else rank_batch
    same = spec.model_copy(
        update={"num_nodes": 1, "gpus_per_node": 1, "micro_batch_size": batch, "gradient_accumulation_steps": 1}
    ).parity_hash
    how = (getattr(spec, axis) for axis in SPEED)
    return (figures.run_id, figures.device_name, same, *how)


class _Groups:
    """The single processes and the plain data parallelism of each piece of work."""

    def __init__(self, figures: Sequence[Figures]) -> None:
        self._work = {id(figure): _work(figure) for figure in figures}
        self._singles: dict[Hashable, list[Figures]] = {}
        self._ddp: dict[Hashable, list[Figures]] = {}
        for figure in figures:
            if is_reference(figure.spec):
                self._singles.setdefault(self._work[id(figure)], []).append(figure)
            elif figure.spec.strategy == "ddp" and figure.spec.compression is Compression.NONE:
                self._ddp.setdefault(self._work[id(figure)], []).append(figure)

    def has_reference(self, figures: Figures) -> bool:
        return self._work[id(figures)] in self._singles

    def speed_up(self, figures: Figures) -> float | None:
        """None on a server, which trains nothing, and for a throughput that is void."""
        single_s = self._single_s(self._work[id(figures)])
        if single_s is None or figures.step_s is None or figures.tokens_per_s is None:
            return None
        return single_s / figures.step_s

    def weak_efficiency(self, figures: Figures) -> float | None:
        share, rest = divmod(figures.spec.global_batch_size, figures.spec.world_size)
        if rest or figures.spec.world_size == 1 or figures.tokens_per_s is None:
            return None
        single_s = self._single_s(_work(figures, share))
        tokens = share * figures.spec.sequence_length
        return None if single_s is None else figures.tokens_per_s / figures.spec.world_size * single_s / tokens

    def saved(self, figures: Figures) -> float | None:
        known = [ddp for ddp in self._ddp.get(self._work[id(figures)], []) if ddp.states_bytes]
        known.sort(key=lambda ddp: ddp.spec.world_size != figures.spec.world_size)
        if not known or figures.states_bytes is None:
            return None
        return 1 - figures.states_bytes / (known[0].states_bytes or 1)

    def _single_s(self, work: Hashable) -> float | None:
        times = [
            figures.step_s
            for figures in self._singles.get(work, [])
            if figures.step_s is not None and figures.tokens_per_s
        ]
        return min(times, default=None)
