"""Reasons why one trial loses against another, in sentences whose every number is in the ledger, the record or the
catalogue.

A trial loses where it does not fit, or where it needs more memory; each that holds is said, in this order. That lower
bounds of their steps are no reason is said between. Nothing is said of what the figures do not show: a category is
explained by a setting only where its bytes are what that setting gives (memory_causes.py).
"""

from collections.abc import Iterator, Sequence

from zerobench.common.units import format_bytes, format_seconds
from zerobench.common.vocabulary import Category, Status
from zerobench.config.trial.trial import Offload, TrialSpec
from zerobench.estimate.clock.order import least_ratio
from zerobench.records.instants import Instant
from zerobench.records.trials import Trial, case_of
from zerobench.report.explain.memory_causes import MOMENTS, cause, reduce_buckets
from zerobench.report.explain.remedies import SMALLER_BUCKET, remedy
from zerobench.report.explain.topic import phase_words, signed_bytes
from zerobench.report.figures.capacity import DeviceNeed, host_instant
from zerobench.report.figures.memory_difference import CategoryDifference, difference, merged
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.words.labels import brief

_MOST_PARTS = 3
_TELLING = 0.05
"""A category smaller than this part of what is explained is not named."""


def why_not(best: TrialFigures, other: TrialFigures) -> list[str]:
    """Reasons why `other` loses against `best`, the weightiest first; empty where nothing known is against it.

    The times are those that their steps are expected to take; without both, nothing is said of times.
    """
    return [
        *_does_not_fit(other),
        *_time(best, other),
        *_more_device_memory(best, other),
        *_more_host_memory(best, other),
    ]


def name_of(spec: TrialSpec) -> str:
    """`stage 3`, with what is offloaded; or the strategy's name where it is no ZeRO stage."""
    name = spec.strategy if spec.zero_stage is None else f"stage {spec.zero_stage}"
    places = {"optimizer states": spec.offload_optimizer, "parameters": spec.offload_param}
    parts = [f"{what} on {where}" for what, where in places.items() if where is not Offload.NONE]
    return f"{name} with {' and '.join(parts)}" if parts else name


def _does_not_fit(row: TrialFigures) -> Iterator[str]:
    need, capacity_bytes = row.need, row.capacity_bytes
    over_bytes = 0 if need is None or capacity_bytes is None else need.total_bytes - capacity_bytes
    if row.status is Status.OUT_OF_DEVICE_MEMORY and over_bytes <= 0:
        yield "ran out of device memory"
    elif need is None:
        yield "memory need unknown (no memory recorded)"
    if need is not None and over_bytes > 0:
        yield (
            f"does not fit: needs {format_bytes(need.total_bytes)} of {format_bytes(capacity_bytes)} per GPU, "
            f"{format_bytes(over_bytes)} too much ({row.need_moments})"
            + (f", most tensors in {phase_words(need.instant.step, need.instant.phase)}" if need.instant else "")
        )
        if need.instant is not None:
            yield from _largest_parts(row.trial, need.instant, over_bytes)
    yield from _host_too_small(row)


def _largest_parts(trial: Trial, instant: Instant, over_bytes: int) -> Iterator[str]:
    """The largest parts, as many as together are larger than what is over."""
    nothing = Instant(instant.rank, instant.step, instant.phase, 0, dict.fromkeys(instant.categories, 0))
    parts = [part for part in merged(difference(nothing, instant), MOMENTS) if part[0].b_bytes > 0]
    named: list[int] = []
    for part, alike in parts[:_MOST_PARTS]:
        if sum(named) > over_bytes:
            break
        named.append(part.b_bytes)
        percent = 100 * part.b_bytes / instant.total_bytes
        change = remedy(trial, part.category, part.b_bytes, instant.largest_part(part.category))
        because = _because(trial, instant, part.category, part.b_bytes, alike)
        yield (
            f"{_words(part.category, alike)}: {format_bytes(part.b_bytes)}, {percent:.0f}% of the "
            f"tensors{because}{f'; less with {change}' if change else ''}"
        )
    if parts and len(named) == 1 and named[0] > over_bytes:
        what, size = _words(parts[0][0].category, parts[0][1]), format_bytes(named[0] - over_bytes)
        yield f"it would fit there with {what} of {size}, all else equal"


def _because(trial: Trial, instant: Instant, category: Category, size: int, alike: int = 1) -> str:
    reason = cause(trial, category, size, alike, instant.largest_part(category))
    return f" ({reason})" if reason else ""


def _words(category: Category, alike: int = 1) -> str:
    return "master weights and moments" if alike > 1 else category.words


def _host_too_small(row: TrialFigures) -> Iterator[str]:
    needed, there = row.host.needed_bytes, row.host.capacity_bytes
    if needed is None or there is None or needed <= there:
        return
    yield (
        f"does not fit: needs {format_bytes(needed)} of {format_bytes(there)} host memory per node, "
        f"{format_bytes(needed - there)} too much"
    )
    instant = host_instant(row.trial)
    if instant is not None and instant.categories:
        category, size = max(instant.categories.items(), key=lambda part: part[1])
        yield f"{_words(category)}: {format_bytes(size)} per rank{_because(row.trial, instant, category, size)}"


def _time(best: TrialFigures, other: TrialFigures) -> Iterator[str]:
    """Expected times of two that fit: `other` is slower, or about as fast."""
    ours, theirs = best.expected, other.expected
    if not other.fits or ours is None or theirs is None:
        return
    words = "slower" if least_ratio(theirs, ours) > 1 else "about as fast"
    yield (
        f"fits, {words}: {format_seconds(theirs.step_s)} per step "
        f"({format_seconds(theirs.low_s)} to {format_seconds(theirs.high_s)}) against "
        f"{format_seconds(ours.step_s)} ({format_seconds(ours.low_s)} to {format_seconds(ours.high_s)})"
    )


def _more_device_memory(best: TrialFigures, other: TrialFigures) -> Iterator[str]:
    ours, theirs = best.need, other.need
    if ours is None or theirs is None or theirs.total_bytes <= ours.total_bytes:
        return
    more = theirs.total_bytes - ours.total_bytes
    name, best_name = _told_apart(other.spec, best.spec)
    yield f"{name} needs {format_bytes(more)} more device memory than {best_name}{_outside(ours, theirs)}"
    if ours.instant is None or theirs.instant is None:
        return
    instants = (ours.instant, theirs.instant)
    differences = difference(*instants)
    yield from _differences(best.trial, other.trial, differences, instants, _TELLING * more)
    yield from _bucket_against_savings(best.trial, other.trial, differences, instants)


def _told_apart(spec: TrialSpec, best: TrialSpec) -> tuple[str, str]:
    names = name_of(spec), name_of(best)
    return names if names[0] != names[1] else (f"{names[0]} of this row", "the recommended row")


def _outside(ours: DeviceNeed, theirs: DeviceNeed) -> str:
    """Parts of the difference that are no tensors, where they weigh."""
    parts = {
        "reserved but unallocated": theirs.slack_bytes - ours.slack_bytes,
        "CUDA context": theirs.context_bytes - ours.context_bytes,
        "NCCL": theirs.collectives_bytes - ours.collectives_bytes,
    }
    whole = abs(theirs.total_bytes - ours.total_bytes)
    sizes = [f"{signed_bytes(size)} {what}" for what, size in parts.items() if abs(size) > _TELLING * whole]
    return f" ({', '.join(sizes)})" if sizes else ""


def _differences(
    best: Trial,
    other: Trial,
    differences: Sequence[CategoryDifference],
    instants: tuple[Instant, Instant],
    least_bytes: float,
) -> Iterator[str]:
    """The differences beyond `least_bytes` at the two peaks, with what makes up those of `other`, else of `best`."""
    telling = [part for part in merged(differences, MOMENTS) if abs(part[0].more_bytes) > least_bytes]
    for part, alike in telling[:_MOST_PARTS]:
        because = _because(other, instants[1], part.category, part.b_bytes, alike)
        if not part.b_bytes:
            because = _because(best, instants[0], part.category, part.a_bytes, alike) or because
        yield (
            f"{_words(part.category, alike)}: {signed_bytes(part.more_bytes)}, {format_bytes(part.b_bytes)} against "
            f"{format_bytes(part.a_bytes)} at the peak{because}"
        )


def _bucket_against_savings(
    best: Trial, other: Trial, differences: Sequence[CategoryDifference], instants: tuple[Instant, Instant]
) -> Iterator[str]:
    """A reduce bucket that alone makes `other` lose, with the smaller one that would not.

    DeepSpeed's bucket is as large for a small model as for a large one, and one setting makes it smaller.
    """
    case = case_of(other)
    bucket = next((part for part in differences if part.category is Category.REDUCE_BUFFERS), None)
    if case is None or bucket is None or reduce_buckets(case, bucket.b_bytes) is None:
        return
    saved = -sum(part.more_bytes for part in differences if part.more_bytes < 0)
    if bucket.more_bytes <= saved or case.bucket_elements <= SMALLER_BUCKET:
        return
    less = bucket.b_bytes - bucket.b_bytes * SMALLER_BUCKET // case.bucket_elements
    by = f" by more than the {format_bytes(saved)} saved in other categories" if saved else ""
    left = instants[1].total_bytes - less - instants[0].total_bytes
    yield (
        f"its reduce bucket of {brief(case.bucket_elements)} elements makes it larger{by}; with "
        f"reduce_bucket_size {brief(SMALLER_BUCKET)} its tensors at that point would be "
        f"{format_bytes(abs(left))} {'more' if left > 0 else 'less'} than those of "
        f"{_told_apart(other.spec, best.spec)[1]}"
    )


def _more_host_memory(best: TrialFigures, other: TrialFigures) -> Iterator[str]:
    ours, theirs = best.host.needed_bytes, other.host.needed_bytes
    if theirs is None or ours is None or theirs <= ours:
        return
    name, best_name = _told_apart(other.spec, best.spec)
    yield f"{name} needs {format_bytes(theirs)} of host memory per node, {best_name} {format_bytes(ours)}"
    before, after = host_instant(best.trial), host_instant(other.trial)
    if before is None or after is None:
        return
    for change in difference(before, after)[:1]:
        if change.more_bytes > 0:
            because = _because(other.trial, after, change.category, change.b_bytes)
            yield f"{_words(change.category)} on the host: {signed_bytes(change.more_bytes)} per rank{because}"
