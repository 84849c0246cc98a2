"""Summary of the difference of two peaks: states against buffers, and the lifetime of the reduce bucket.

That stage 3 needs more than stage 2 where the model is small is seldom in the sizes alone: stage 3 holds its reduce
bucket for the whole step, also while logits and activations are at their largest, and stage 2 allocates it when they
are going (DeepSpeed 0.19.8, stage3.py, _setup_for_real_optimizer; stage_1_and_2.py, setup_buckets). Both are read from
what was live at the ends of the phases, and not assumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.records.instants import OPTIMIZER_STATES, Instant
from zerobench.records.records import RankRecord
from zerobench.records.trials import Trial, case_of
from zerobench.report.explain.held_parts import held_part
from zerobench.report.explain.pair import Pair
from zerobench.report.explain.remedies import is_held_otherwise
from zerobench.report.explain.topic import Topic, says, signed_bytes
from zerobench.report.words.labels import brief

_STATES = {Category.PARAMETERS, Category.GRADIENTS, *OPTIMIZER_STATES}
_BUFFERS = {
    Category.REDUCE_BUFFERS,
    Category.ALL_GATHER_BUFFERS,
    Category.GATHERED_PARAMETERS,
    Category.PIPELINE_BUFFERS,
}
_PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.STEP)
_PARTITIONED = 3
"""The stage that partitions parameters."""
_ALIKE = 0.01
_TELLING = 0.01


def story_topic(pair: Pair) -> Topic:
    """Return the differences in a few sentences."""
    lines = says(_balance(pair), *_other_instants(pair))
    if _buckets_matter(pair):
        lines += says(*_held(pair), *_unfilled(pair))
    return Topic("Summary", lines, brief=[])


def _balance(pair: Pair) -> str | None:
    groups = {"model states": 0, "communication buffers and gathered parameters": 0, "activations and temporaries": 0}
    names = list(groups)
    for difference in pair.differences:
        kind = names[0] if difference.category in _STATES else names[1] if difference.category in _BUFFERS else names[2]
        groups[kind] += difference.more_bytes
    changes = [f"{name} {signed_bytes(nbytes)}" for name, nbytes in groups.items() if nbytes]
    return f"{pair.names[1]} against {pair.names[0]}: {', '.join(changes)}." if changes else None


def gathered_again(pair: Pair) -> str | None:
    """Return the sentence on parameters that are divided and gathered again, which saves little at the peak."""
    by_category = {difference.category: difference for difference in pair.differences}
    parameters, gathered = by_category.get(Category.PARAMETERS), by_category.get(Category.GATHERED_PARAMETERS)
    divides = [trial.spec.zero_stage == _PARTITIONED for trial in pair.trials]
    if parameters is None or gathered is None or divides[0] == divides[1]:
        return None
    sign = 1 if divides[1] else -1
    if sign * parameters.more_bytes >= 0 or sign * gathered.more_bytes <= 0:
        return None
    at = divides.index(True)
    less, held = format_bytes(abs(parameters.more_bytes)), format_bytes(abs(gathered.more_bytes))
    sentence = f"{pair.names[at]} partitions the parameters, {less} less, and holds {held} gathered at its peak"
    return f"{sentence}{_why_gathered(pair.trials[at], pair.peaks[at])}."


def _why_gathered(trial: Trial, peak: Instant) -> str:
    """The engine's limit, unless the record says that others hold what is gathered."""
    part, case = peak.largest_part(Category.GATHERED_PARAMETERS), case_of(trial)
    if part is not None and is_held_otherwise(Category.GATHERED_PARAMETERS, part):
        return f": {held_part(part)}"
    limit = int(case.zero("stage3_max_live_parameters")) if case else 0
    if case and limit >= case.num_params:
        return f": stage3_max_live_parameters {brief(limit)} exceeds the model: all of it stays gathered"
    return f" (stage3_max_live_parameters {brief(limit)})"


def _other_instants(pair: Pair) -> Iterator[str]:
    """Categories that both trials fill as far in this phase, one of them not when its total is largest."""
    if pair.peaks[0].phase is not pair.peaks[1].phase:
        return
    for difference in pair.telling:
        tops = [
            _own_peak(trial, peak, difference.category) for trial, peak in zip(pair.trials, pair.peaks, strict=True)
        ]
        larger = max(tops)
        if min(tops) < (1 - _ALIKE) * larger or min(difference.a_bytes, difference.b_bytes) >= (1 - _ALIKE) * larger:
            continue
        name = pair.names[0] if difference.a_bytes < difference.b_bytes else pair.names[1]
        yield (
            f"{difference.category.words.capitalize()} reach {format_bytes(larger)} in "
            f"{pair.peaks[0].phase.value} of both trials, but not at the peak of {name}."
        )


def _own_peak(trial: Trial, peak: Instant, category: Category) -> int:
    """The most that the category holds within the peak's phase, on the peak's rank."""
    rank = _rank(trial, peak)
    rows = [] if rank is None else rank.memory
    keys = (peak.step, peak.phase, Place.DEVICE, category)
    tops = [row.own_peak_bytes or 0 for row in rows if (row.step, row.phase, row.place, row.category) == keys]
    return max(tops, default=0)


def _rank(trial: Trial, peak: Instant) -> RankRecord | None:
    return next((record for record in trial.ranks if record.rank == peak.rank), None)


def _buckets_matter(pair: Pair) -> bool:
    """Return whether reduce buffers are a large part of a peak, or of the difference."""
    held = [peak.categories.get(Category.REDUCE_BUFFERS, 0) >= _TELLING * peak.total_bytes for peak in pair.peaks]
    return any(held) or any(difference.category is Category.REDUCE_BUFFERS for difference in pair.telling)


@dataclass(frozen=True)
class _Lifetime:
    """Lifetime of a trial's reduce buffers."""

    name: str
    always_bytes: int
    """Of the bucket, what is live at the end of every phase of a steady step; 0 where it comes and goes."""
    most_bytes: int
    """The largest of any phase."""
    most_in: Phase
    after_bytes: int
    """Live when the step has ended."""

    @property
    def is_always(self) -> bool:
        return self.always_bytes > 0

    @property
    def text(self) -> str:
        if self.is_always:
            return f"{self.name} keeps its reduce bucket, {format_bytes(self.always_bytes)}, through the whole step."
        most, after = format_bytes(self.most_bytes), format_bytes(self.after_bytes)
        return f"{self.name} has reduce buffers of up to {most} in {self.most_in.value}, and {after} after the step."


def _lifetime(name: str, trial: Trial, peak: Instant) -> _Lifetime | None:
    """None for a trial without a reduce bucket."""
    rank, case = _rank(trial, peak), case_of(trial)
    if rank is None or case is None or not case.stage:
        return None
    keys = (StepKind.STEADY, Place.DEVICE, Category.REDUCE_BUFFERS)
    rows = [row for row in rank.memory if (row.step, row.place, row.category) == keys]
    most, most_in = max(((row.own_peak_bytes or 0, row.phase) for row in rows), default=(0, Phase.STEP))
    if not most:
        return None
    live = {row.phase: row.live_bytes for row in rows}
    least = min(live.get(phase, 0) for phase in _PHASES)
    kept = least if least >= case.bucket_bytes else 0
    return _Lifetime(name, kept, most, most_in, live.get(Phase.STEP, 0))


def _held(pair: Pair) -> Iterator[str]:
    """For how long each trial holds its bucket; and what that means where they differ in it."""
    lifetimes = [_lifetime(*side) for side in zip(pair.names, pair.trials, pair.peaks, strict=True)]
    known = [lifetime for lifetime in lifetimes if lifetime is not None]
    for lifetime in known:
        yield lifetime.text
    if len(known) == 2 and known[0].is_always != known[1].is_always:
        always, passing = sorted(known, key=lambda lifetime: not lifetime.is_always)
        yield (
            f"The bucket adds to the whole peak of {always.name}; {passing.name} allocates it while backward "
            "frees memory."
        )


def _unfilled(pair: Pair) -> Iterator[str]:
    """Yield the part of a bucket that no gradient ever fills, where it is larger than all gradients of the model."""
    sentences = set()
    for trial in pair.trials:
        case = case_of(trial)
        if case is None or not case.stage or not 0 < case.trained < case.bucket_elements:
            continue
        spare = case.bucket_bytes - case.bucket_bytes * case.trained // case.bucket_elements
        whole = "the model" if case.trained == case.num_params else "all trained parameters"
        sentences.add(
            f"Reduce bucket of {brief(case.bucket_elements)} elements, larger than {whole}: {format_bytes(spare)} of "
            f"{format_bytes(case.bucket_bytes)} unused ({case.trained:,} gradients)."
        )
    yield from sorted(sentences)
