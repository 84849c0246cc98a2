"""Causes of different peaks in two runs of the same work: what makes the largest difference as large as it is, and
which of the engine's settings changed (the requested ones are equal: these are defaults that changed).

Only trials that differ are looked at, and read again from disk for it, so that a comparison need not hold them all.
"""

from collections.abc import Sequence

from zerobench.config.deepspeed.user_file import leaves
from zerobench.records.trials import Trial, refuse_impossible_values
from zerobench.report.explain.memory_causes import cause
from zerobench.report.figures.compare.comparison import Comparison
from zerobench.report.figures.compare.memory import MemoryChange, place_name
from zerobench.report.figures.notes import listed
from zerobench.report.tables.part import first
from zerobench.report.words.labels import brief

_MOST_PEAKS = 10
_ABSENT = object()


def causes(comparison: Comparison, peaks: Sequence[MemoryChange], *, with_settings: bool = True) -> list[str]:
    """A sentence for each peak that differs by more than its repeats do, as far as something is known of it.

    Raises UserError: a record of one of the trials is torn.
    """
    differing = [peak for peak in peaks if peak.base.instant.categories and peak.differences]
    differing = [peak for peak in differing if not peak.is_within_spread]
    causes: dict[tuple[str, str], str] = {}
    for peak in first(differing, _MOST_PEAKS)[0]:
        base = comparison.base.run.trial(peak.base.middle.trial_id)
        new = comparison.new.run.trial(peak.new.middle.trial_id)
        with refuse_impossible_values(comparison.new.run.folder.trials):
            why = _cause(base, new, peak)
        if why is not None:
            causes.setdefault((peak.label, why), f"{peak.label}: {place_name(peak.where)}: {why}")
        for sentence in settings_sentences(peak.label, base, new) if with_settings else ():
            causes[peak.label, "settings"] = sentence
    return list(causes.values())


def settings_sentences(label: str, base: Trial, new: Trial) -> list[str]:
    """Settings that the engine read back otherwise in NEW of the trial called `label`; none where nothing."""
    settings = changed_settings(base, new)
    return [f"{label}: DeepSpeed reports {listed(settings)}"] if settings else []


def _cause(base: Trial, new: Trial, peak: MemoryChange) -> str | None:
    """The phrase of the side that has more of the category that differs most."""
    largest = peak.differences[0]
    grew = largest.more_bytes > 0
    trial, nbytes, side = (new, largest.b_bytes, peak.new) if grew else (base, largest.a_bytes, peak.base)
    phrase = cause(trial, largest.category, nbytes, part=side.instant.largest_part(largest.category))
    name = largest.category.words
    return None if phrase is None else f"{name}: in {'NEW' if grew else 'BASE'} {phrase}"


def changed_settings(base: Trial, new: Trial) -> list[str]:
    """`zero_optimization.overlap_comm false -> true`: what the engine read back, of keys that both know."""
    configs = (next((rank.effective_config for rank in trial.ranks), {}) for trial in (base, new))
    left, right = (dict(leaves(config)) for config in configs)
    return [
        f"{key} {brief(left[key])} -> {brief(right[key])}"
        for key in left
        if right.get(key, _ABSENT) not in (left[key], _ABSENT)
    ]
