"""Difference in speed of the same trial in two runs, and what the comparison may claim.

A repeat, in processes of its own, is one value: the median of its timed steps. Steps of one process are not
independent of each other. They share what a process draws once and keeps (addresses, which core and which neighbours,
the allocator's history, kernels chosen by a timing), and such draws move whole processes by more than steps scatter
within one, so that a test over pooled steps finds a difference between any two processes of the same software (Kalibera
& Jones 2013, "Rigorous Benchmarking in Reasonable Time"; Georges, Buytaert & Eeckhout 2007, "Statistically Rigorous
Java Performance Evaluation"; Mytkowicz et al. 2009, "Producing Wrong Data Without Doing Anything Obviously Wrong!").

With one repeat on a side there is nothing else to test than steps. That is done and marked as what it is: it tells two
processes apart and says nothing of the next two, so no gate looks at it. And no repeat within a run tells what was
true of the whole hour (a hot or a shared machine): runs to be compared belong on one quiet machine, soon after each
other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from zerobench.report.figures.compare.sides import Repeat
from zerobench.report.figures.compare.stats import Change, change
from zerobench.report.figures.stats import median


@dataclass(frozen=True)
class SpeedChange:
    """The step times of one trial in both runs."""

    base_s: tuple[float, ...]
    """Tested values of BASE, in seconds: medians of its processes, or the steps of the one process."""
    new_s: tuple[float, ...]
    change: Change
    """Ratios are NEW over BASE: above 1 is slower."""
    over_processes: bool
    """True if the values are processes; else they are steps of one."""
    void: str | None
    """Reason why one of the runs has no throughput to compare."""

    @property
    def verdict(self) -> str:
        """`slower` or `faster` where that is shown; else what stands in its way."""
        if self.void is not None:
            return "void"
        if not self.over_processes:
            return "steps only"
        if not self.change.can_be_significant:
            return "too few"
        if not self.change.is_significant:
            return "not shown"
        return "slower" if self.change.ratio > 1 else "faster"

    @property
    def can_be_judged(self) -> bool:
        """True if any outcome of this comparison could have been a significant one about processes."""
        return self.void is None and self.over_processes and self.change.can_be_significant


def speed_change(base: Sequence[Repeat], new: Sequence[Repeat]) -> SpeedChange | None:
    """Change of speed; None where one of the runs timed no step."""
    sides = [[repeat for repeat in repeats if repeat.step_times_s] for repeats in (base, new)]
    if not all(sides):
        return None
    over_processes = all(len(side) > 1 for side in sides)
    base_s, new_s = (tuple(map(_median, side)) if over_processes else _steps(side) for side in sides)
    void = next((repeat.void for side in sides for repeat in side if repeat.void), None)
    return SpeedChange(base_s, new_s, change(base_s, new_s), over_processes, void)


def _steps(repeats: Sequence[Repeat]) -> tuple[float, ...]:
    """The steps of one process: of several, the one of median speed, the faster of two."""
    ordered = sorted(repeats, key=_median)
    return ordered[(len(ordered) - 1) // 2].step_times_s


def _median(repeat: Repeat) -> float:
    """The median step of a process."""
    return median(repeat.step_times_s) or 0.0
