"""How far the expected time of a step is from the measured one, and whether that lies in the interval."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median_low

from zerobench.estimate.clock.step import Interval
from zerobench.estimate.time.predicted_speed import predicted_step
from zerobench.report.figures.predictions.predicted import Pair
from zerobench.report.figures.speed import speed_of


@dataclass(frozen=True)
class TimeRow:
    """One prediction beside what measured the same work."""

    pair: Pair
    expected: Interval
    measured_s: float

    @property
    def error(self) -> float:
        """Expected minus measured, as a fraction of measured."""
        return (self.expected.step_s - self.measured_s) / self.measured_s

    @property
    def is_inside(self) -> bool:
        """Whether the interval, which is to hold eight of ten, holds it."""
        return self.expected.low_s <= self.measured_s <= self.expected.high_s


def step_times(pairs: Iterable[Pair]) -> Iterator[TimeRow]:
    """Of each prediction that a time is expected of and that was timed; a throughput that is void is no time."""
    for pair in pairs:
        speeds = [speed for trial in pair.measured if (speed := speed_of(trial)) is not None and not speed.void]
        expected = predicted_step(pair.predicted).expected
        if speeds and expected is not None:
            yield TimeRow(pair, expected, median_low([speed.step_time_s_median for speed in speeds]))
