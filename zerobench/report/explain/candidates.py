"""The trials that a headline chooses among: what each needs and how fast it is, repeats of one trial together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from zerobench.common.grouped import grouped
from zerobench.common.units import counted
from zerobench.common.vocabulary import Status
from zerobench.config.derived.strategy import STRATEGIES
from zerobench.config.trial.trial import TrialSpec
from zerobench.report.figures.run.runs import RunFigures
from zerobench.report.figures.stats import median, median_range
from zerobench.report.figures.trial import TrialFigures

_REFERENCES = {name for name, info in STRATEGIES.items() if info.is_reference}


class Work(NamedTuple):
    """Work that must be equal for tokens per second to be compared."""

    model: str
    ranks: str
    sequence: str
    precision: str


@dataclass(frozen=True)
class Candidate:
    """One trial that completed and can be believed; repeats of it together."""

    figures: TrialFigures
    """Figures of its first repeat, with the largest needs of all of them."""
    work: Work
    is_reference: bool
    """True if it is the plain loop on one rank that the others are compared with, and no choice itself."""
    rates: Sequence[float]
    """Tokens per second of each timed step, or of each repeat where there are several; empty where void or untimed."""
    num_repeats: int

    @property
    def label(self) -> str:
        return self.figures.label

    @property
    def tokens_per_s(self) -> float | None:
        """The median."""
        return median(self.rates)

    @property
    def interval(self) -> tuple[float, float]:
        """Range of their median."""
        return median_range(self.rates)

    @property
    def needed_bytes(self) -> int | None:
        """Need of one device: the largest over ranks, start-up and repeats."""
        return self.figures.device_needed_bytes

    @property
    def needs_most(self) -> str:
        """`at start-up` or `in steps`: when the device holds most."""
        return self.figures.need_moments.partition(",")[0]

    @property
    def capacity_bytes(self) -> int | None:
        """Memory of one device."""
        return self.figures.capacity_bytes

    @property
    def fits(self) -> bool | None:
        """True if the device holds it; None if its memory, or the trial's need, is not known."""
        device = self.figures.device
        return None if device.room is None else device.fits

    def overlaps(self, other: Candidate) -> bool:
        """True if neither can be called faster."""
        return self.interval[0] <= other.interval[1] and other.interval[0] <= self.interval[1]


def candidates(runs: RunFigures) -> list[Candidate]:
    """The trials whose work was whole and that agree with their reference, repeats joined, in the runs' order.

    A prediction of what was measured too is left out: the measurement counts. On one rank the reference is a way to
    train like the others.
    """
    is_one_rank = all(trial.spec.world_size == 1 for trial in runs.figures)
    known = [_candidate(repeats, has_reference=not is_one_rank) for repeats in _repeats(runs.figures)]
    ran_out = {
        trial.config_hash for trial in runs.figures if trial.status is Status.OUT_OF_DEVICE_MEMORY and trial.is_measured
    }
    measured = {each.figures.config_hash for each in known if each.figures.is_measured} | ran_out
    return [each for each in known if each.figures.is_measured or each.figures.config_hash not in measured]


def _repeats(trials: Iterable[TrialFigures]) -> Iterable[Sequence[TrialFigures]]:
    """The believed trials of each piece of work, on each device."""

    def work(trial: TrialFigures) -> object:
        return trial.run_id, trial.config_hash, trial.spec.evidence, trial.gpu, trial.device_name

    return grouped((trial for trial in trials if trial.is_whole and trial.is_believed), work).values()


def _candidate(repeats: Sequence[TrialFigures], *, has_reference: bool) -> Candidate:
    first, spec = repeats[0], repeats[0].spec
    timed = [rates for trial in repeats if (rates := _rates(trial))]
    several = [middle for rates in timed if (middle := median(rates)) is not None]
    needs = [need for trial in repeats for need in trial.needs.values()]
    largest = {need.step: need for need in sorted(needs, key=lambda need: need.total_bytes)}
    fit = max((trial.fit for trial in repeats), key=lambda fit: fit.device.needed_bytes or 0)
    return Candidate(
        figures=replace(first, label=_label(repeats), needs=largest, fit=fit),
        work=_work(spec),
        is_reference=has_reference and spec.strategy in _REFERENCES,
        rates=several if len(timed) > 1 else [rate for rates in timed for rate in rates],
        num_repeats=len(repeats),
    )


def _label(repeats: Sequence[TrialFigures]) -> str:
    """The trial's name; of several repeats without the number of the first."""
    label, spec = repeats[0].label, repeats[0].spec
    if len(repeats) == 1:
        return label
    words = [word for word in label.split(" ") if word != f"rep{spec.repeat}"]
    return " ".join(words if words and words[0] != "@" else [spec.strategy, *words])


def _work(spec: TrialSpec) -> Work:
    known = spec.knows("sequence_length")
    return Work(
        f"of {spec.model.name if spec.knows('model') else 'unknown'}",
        f"on {counted(spec.world_size, 'rank')}",
        f"at sequence length {spec.sequence_length:,}" if known else "at unknown sequence length",
        f"in {spec.precision.value if spec.knows('precision') else 'unknown'}",
    )


def _rates(trial: TrialFigures) -> list[float]:
    """Tokens per second in each timed step, where the throughput stands."""
    if trial.void or trial.tokens_per_s is None or not trial.is_measured:
        return []
    return [trial.spec.global_batch_tokens / step.step_s for step in trial.steps if step.step_s > 0]


def timed_groups(known: Sequence[Candidate]) -> dict[str, list[Candidate]]:
    """The candidates that were timed and do not fail to fit, by comparable work, the largest group first.

    A group is named by what tells its work from the others'. The reference is in none, where there is anything else.
    """
    timed = [candidate for candidate in known if candidate.rates and candidate.fits is not False]
    ranked = [candidate for candidate in timed if not candidate.is_reference] or timed
    varying = [index for index in range(len(Work._fields)) if len({candidate.work[index] for candidate in ranked}) > 1]
    groups = grouped(ranked, lambda candidate: " ".join(candidate.work[index] for index in varying))
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def equally_fast(known: Sequence[Candidate]) -> list[Candidate]:
    """The fastest of `known`, and those that cannot be told from it, the one with the least memory first."""
    best = max(known, key=lambda candidate: candidate.tokens_per_s or 0.0)
    alike = [candidate for candidate in known if candidate.overlaps(best)]
    return sorted(alike, key=lambda candidate: (candidate.needed_bytes is None, candidate.needed_bytes or 0))
