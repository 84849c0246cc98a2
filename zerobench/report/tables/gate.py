"""The gate of a comparison: how much more memory and how much slower a change may be before CI goes red.

Memory fails where NEW's peak is above BASE's by more than the limit: any place, start-up included. A trial that
completes less often in NEW fails every gate. Speed fails where NEW is slower by more than the
limit and that is significant: p < 0.05, and the interval excludes `no change`. Over many trials the test alone would
cry wolf (one in forty is called slower by chance); that it must exceed the limit too is what keeps the gate quiet.

A gate that cannot fire is no gate. The smallest p of n repeats a side is 2 / C(2n, n), so from four repeats a side on
the test can be significant; where no trial of the comparison has as many, the gate is refused, and where some lack
them, those are named.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from zerobench.common.errors import UserError, unknown_choice
from zerobench.common.units import format_bytes, parse_bytes, times_as_long
from zerobench.report.figures.compare.comparison import Comparison, SharedTrial, ended
from zerobench.report.figures.compare.configuration import configuration_line
from zerobench.report.figures.compare.memory import MemoryChange, measured_in_new_only, place_name
from zerobench.report.figures.compare.speed import SpeedChange
from zerobench.report.figures.compare.stats import SIGNIFICANCE, repeats_needed
from zerobench.report.tables.causes import causes, settings_sentences
from zerobench.report.words.column_units import show_percent

METRICS = ("memory", "speed")
_NOTHING = {"memory": "no trial completed in both runs", "speed": "no trial timed steps in both runs"}
_EXAMPLE = "for example memory:2%,speed:5% or memory:100MiB"


@dataclass(frozen=True)
class Limit:
    """By how much a metric may get worse; one of the two is None."""

    metric: str
    written: str
    """As the user wrote it."""
    fraction: float | None = None
    nbytes: int | None = None

    def is_beyond(self, more_bytes: int, base_bytes: int) -> bool:
        """Return whether `more_bytes` on top of `base_bytes` exceed the limit.

        Growth from 0 exceeds any percentage. Below 0 lies only the host's remainder of a CPU rank (sides.RESIDENT),
        which is known no better than by what it lacks: growth past that exceeds any percentage.
        """
        if self.nbytes is not None:
            return more_bytes > self.nbytes
        if base_bytes <= 0:
            return base_bytes + more_bytes > -base_bytes
        return more_bytes / base_bytes > (self.fraction or 0.0)


@dataclass
class Verdict:
    """Result of checking one limit."""

    limit: Limit
    num_judged: int = 0
    failures: list[str] = field(default_factory=list)
    """A sentence for each trial that exceeds it."""
    not_judged: list[str] = field(default_factory=list)
    """A sentence for each trial of which it can say nothing."""

    @property
    def passed(self) -> bool:
        """True if nothing exceeds it."""
        return not self.failures


def parse_limits(written: str) -> list[Limit]:
    """The limits in `memory:2%,speed:5%`; sizes as in `memory:100MiB`.

    Raises UserError: the text is none of this.
    """
    parts = [part.strip() for part in written.split(",") if part.strip()]
    if not parts:
        raise UserError(f"--fail-on: {written!r}: limit missing; {_EXAMPLE}")
    return [_limit(part) for part in parts]


def _limit(part: str) -> Limit:
    metric, colon, amount = (word.strip() for word in part.partition(":"))
    if metric not in METRICS:
        raise unknown_choice("--fail-on", metric, METRICS)
    if not colon or not amount:
        raise UserError(f"--fail-on: {part!r}: limit missing; {_EXAMPLE}")
    if amount.endswith("%"):
        return Limit(metric, part, fraction=_fraction(part, amount.removesuffix("%")))
    if metric == "speed":
        raise UserError(f"--fail-on: {part!r}: speed takes a percentage; {_EXAMPLE}")
    if not amount[-1].isalpha():
        raise UserError(f"--fail-on: {part!r}: unit missing; {_EXAMPLE}")
    return Limit(metric, part, nbytes=parse_bytes(amount, f"--fail-on: {part!r}"))


def _fraction(part: str, number: str) -> float:
    try:
        percent = float(number)
    except ValueError:
        percent = math.nan
    if not (math.isfinite(percent) and percent >= 0):
        raise UserError(f"--fail-on: {part!r}: {number!r} is not a percentage of 0 or more; {_EXAMPLE}")
    return percent / 100


def judge(comparison: Comparison, limits: Sequence[Limit]) -> list[Verdict]:
    """Check each of `limits`."""
    return [_verdict(comparison, limit) for limit in limits]


def worst_of(verdicts: Sequence[Verdict]) -> Verdict | None:
    """The first that fails; its first failure is the worst."""
    return next((verdict for verdict in verdicts if not verdict.passed), None)


def gate_sentence(verdicts: Sequence[Verdict]) -> str:
    """Result of the gate, with the worst that fails it."""
    worst = worst_of(verdicts)
    if worst is not None:
        return f"FAILED {worst.limit.written}: {worst.failures[0]}"
    return "Passed" if all(verdict.num_judged for verdict in verdicts) else "CANNOT FIRE"


def refusal(verdicts: Sequence[Verdict]) -> str | None:
    """Reason why a gate cannot fire whatever the runs hold, in one line; None where each of them can."""
    for verdict in verdicts:
        if verdict.num_judged == 0 and not verdict.failures:
            why = verdict.not_judged[0] if verdict.not_judged else _NOTHING[verdict.limit.metric]
            return f"--fail-on: {verdict.limit.written}: cannot be checked on these runs: {why}"
    return None


def _verdict(comparison: Comparison, limit: Limit) -> Verdict:
    verdict = Verdict(limit, not_judged=[f"{name}, missing in NEW" for name in comparison.only_base])
    for same in sorted(comparison.same, key=_badness, reverse=True):
        if same.stopped_completing:
            verdict.num_judged += 1
            verdict.failures.append(f"{same.label}, {outcome(same)}")
        elif same.ran_in_both and limit.metric == "memory":
            _judge_memory(verdict, same)
        elif same.ran_in_both:
            _judge_speed(verdict, same)
    return verdict


def _badness(same: SharedTrial) -> tuple[bool, float]:
    """Key of the worst trial: that it no longer completes, then the largest growth of a peak."""
    return same.stopped_completing, max((change.growth for change in same.memory), default=0.0)


def outcome(same: SharedTrial) -> str:
    """`completed in BASE, out of device memory in NEW`."""
    return f"{ended(same.base)} in BASE, {ended(same.new)} in NEW"


def _judge_memory(verdict: Verdict, same: SharedTrial) -> None:
    if not same.memory:
        verdict.not_judged.append(f"{same.label}, no peak in common")
        return
    unread = [place_name(where) for where in measured_in_new_only(same.base, same.new)]
    verdict.not_judged += [f"{same.label}, {name} peak, not measured in BASE" for name in unread]
    verdict.num_judged += 1
    beyond = verdict.limit.is_beyond
    exceeded = [change for change in same.memory if beyond(change.more_bytes, change.base.instant.total_bytes)]
    exceeded.sort(key=lambda change: change.growth, reverse=True)
    verdict.failures += [f"{same.label}, {memory_sentence(change)}" for change in exceeded]


def memory_sentence(change: MemoryChange) -> str:
    """`device peak 12.10 GiB to 13.00 GiB, +966.37 MiB (+7.5%), most of it reduce buffers`."""
    base, new = change.base.instant.total_bytes, change.new.instant.total_bytes
    grown = f"{'+' if change.more_bytes > 0 else ''}{format_bytes(change.more_bytes)}"
    share = "" if change.fraction is None else f" ({show_percent(change.fraction, 2, signed=True)})"
    share = " (new)" if base == 0 and new > 0 else share
    most = f", mostly {change.largest.words}" if change.largest else ""
    return f"{place_name(change.where)} peak {format_bytes(base)} to {format_bytes(new)}, {grown}{share}{most}"


def _judge_speed(verdict: Verdict, same: SharedTrial) -> None:
    speed = same.speed
    if speed is None and not any(repeat.step_times_s for repeat in (*same.base, *same.new)):
        return  # a prediction, of which nobody expects a time
    if speed is None or not speed.can_be_judged:
        verdict.not_judged.append(f"{same.label}, {_unjudged(same)}")
        return
    verdict.num_judged += 1
    if speed.verdict == "slower" and speed.change.ratio - 1 > (verdict.limit.fraction or 0.0):
        verdict.failures.append(f"{same.label}, {speed_sentence(speed)}")


def speed_sentence(speed: SpeedChange) -> str:
    """`a step takes 7.4% longer, p = 0.029`, or `a step takes 2.6 times as long, p = 0.029`."""
    return f"a step takes {times_as_long(speed.change.ratio)}, p = {speed.change.p_value:.2g}"


def _unjudged(same: SharedTrial) -> str:
    speed = same.speed
    if speed is None:
        return "no timed steps in one of the runs"
    if speed.void is not None:
        return f"its throughput is void: {speed.void}"
    counts = (sum(bool(repeat.step_times_s) for repeat in repeats) for repeats in (same.base, same.new))
    repeats = " and ".join(map(str, counts))
    smallest = f", smallest possible p {speed.change.smallest_p:.2g}" if speed.over_processes else ""
    return (
        f"{repeats} repeats{smallest}: too few for significance at {SIGNIFICANCE}; run both with "
        f"--repeats {repeats_needed()} or more"
    )


def headline(comparison: Comparison, verdicts: Sequence[Verdict]) -> list[str]:
    """The answer: the verdict of a gate, what changed in the configuration, the worst of memory and of speed, and why.

    Raises UserError: a record that the causes are read from is torn.
    """
    opening = [gate_sentence(verdicts)] if verdicts else []
    first, *worst = [*opening, *(line for line in _worst(comparison) if not any(line in said for said in opening))]
    return [first, *changed_configuration(comparison), *worst, *why(comparison)]


def changed_configuration(comparison: Comparison) -> list[str]:
    """The line that says what changed in the trials' configurations; none where nothing did."""
    line = configuration_line(comparison.configuration, len(comparison.same))
    return [] if line is None else [line]


def why(comparison: Comparison) -> list[str]:
    """Cause of the largest growth of a peak, as far as it is known, and the largest category that BASE did not have."""
    grown = [peak for peak in comparison.peaks if peak.more_bytes > 0 and peak.base.instant.categories]
    worst = max(grown, key=lambda peak: peak.growth, default=None)
    is_set = bool(comparison.configuration)
    reasons = [] if worst is None else causes(comparison, [worst], with_settings=not is_set)
    slowest = _slowest(comparison)
    if slowest is not None and worst is None and not is_set:
        base, new = slowest.base[0].trial_id, slowest.new[0].trial_id
        reasons = settings_sentences(slowest.label, comparison.base.run.trial(base), comparison.new.run.trial(new))
    return [*reasons, *_appeared(comparison, worst)]


def _appeared(comparison: Comparison, worst: MemoryChange | None) -> Iterator[str]:
    """A category in no peak of BASE may hide behind one that shrank: no total tells of it."""
    found = [(peak, part) for peak in comparison.peaks if (part := peak.appearing) is not None]
    peak, part = max(found, key=lambda pair: pair[1].more_bytes, default=(None, None))
    if peak is not None and part is not None and (worst is None or part.category is not worst.largest):
        size = format_bytes(part.b_bytes)
        yield f"{peak.label}, new at the {place_name(peak.where)} peak: {part.category.words}, {size}"


def _worst(comparison: Comparison) -> Iterator[str]:
    stopped = next((same for same in comparison.same if same.stopped_completing), None)
    if stopped is not None:
        yield f"{stopped.label}, {outcome(stopped)}"
    grown = max(comparison.peaks, key=lambda peak: peak.growth, default=None)
    if grown is not None and grown.more_bytes > 0:
        yield f"{grown.label}, {memory_sentence(grown)}"
    elif stopped is None:
        yield "No peak grew"
    slowest = _slowest(comparison)
    if slowest is not None and slowest.speed is not None:
        yield f"{slowest.label}, {speed_sentence(slowest.speed)}"


def _slowest(comparison: Comparison) -> SharedTrial | None:
    """The trial that slowed down most; None where none is shown to."""
    slower = [same for same in comparison.same if same.speed is not None and same.speed.verdict == "slower"]
    return max(slower, key=lambda same: same.speed.change.ratio if same.speed else 0.0, default=None)
