"""Releases that a prediction is of, and what earlier releases of transformers need beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Category, Place, StepKind
from zerobench.config.models.architecture import dimensions
from zerobench.config.trial.trial import CrossEntropy, Evidence, TrialSpec
from zerobench.records.instants import largest_peak
from zerobench.records.trials import Trial
from zerobench.report.figures.environment_facts import Environment, at, text, versions
from zerobench.report.words.column_units import plain

FORMULAS_OF = "DeepSpeed 0.19.8, torch 2.13 and transformers 5"
"""Releases whose source the closed forms were read in (zerobench.estimate.memory)."""

OTHERS_DIFFER = "; other releases may differ"

_PACKAGES = {
    "DeepSpeed": "deepspeed",
    "torch": "torch",
    "transformers": "transformers",
    "PEFT": "peft",
    "accelerate": "accelerate",
}
_ALWAYS = ("deepspeed", "torch", "transformers")
"""Those that older records, which name none, are of as the run's environment has them."""
_WEIGHTY = 0.1
"""Share of a peak from which logits are worth a note."""
_COPY_BYTES = 4
"""What 4.x needs more at most, per logit. Counted at the peak of a Mistral's loss in bf16, under releases 4.36, 4.44,
4.48 and 5.23: 18.4, 16.4, 14.4 and 14.5 bytes where the model's output lives until backward; 14.5, 12.4, 14.4 and 12.5
where it does not.
"""


def releases(trials: Iterable[Trial], environment: Environment | None = None) -> dict[str, str]:
    """The versions that acted in the ranks of `trials`, by package; of older records those of the run's environment."""
    known = dict(versions(environment or {}))
    found: dict[str, dict[str, None]] = {}
    for rank in (rank for trial in trials for rank in trial.ranks):
        acted = rank.versions or {name: version for name in _ALWAYS if (version := known.get(name))}
        for name, version in acted.items():
            found.setdefault(name, {})[plain(version)] = None
    return {name: " or ".join(found[name]) for name in _PACKAGES.values() if name in found}


def predicted_with(environment: Environment, trials: Iterable[Trial]) -> list[str]:
    """A line with the releases that predictions ran, where there are any: they hold for those alone."""
    trials = list(trials)
    played = [trial for trial in trials if trial.spec.evidence.plays_one_rank]
    acted = releases(played, environment)
    engine = ", ".join(f"{title} {acted[name]}" for title, name in _PACKAGES.items() if name in acted)
    is_emulated = any(trial.spec.evidence is Evidence.EMULATED for trial in played)
    emulated = text(at(environment, "emulator", "torch")) if is_emulated else None
    lines = {
        f"predicted with: {engine}": engine,
        f"emulated with: torch {emulated}": emulated and emulated not in acted.get("torch", ""),
        f"by formula: for {FORMULAS_OF}": any(trial.spec.evidence is Evidence.FORMULA for trial in trials),
    }
    return [f"{line}{OTHERS_DIFFER}" for line, applies in lines.items() if applies]


def logits_notes(trial: Trial) -> Iterator[str]:
    """Memory that transformers 4.x would need beside a prediction of a later one, where logits weigh in the peak."""
    version = releases([trial]).get("transformers", "")
    peak = largest_peak(trial, StepKind.STEADY, Place.DEVICE)
    copy = _copy_bytes(trial.spec)
    if not _is_of_5(trial.spec, version) or peak is None or copy is None:
        return
    logits = peak.categories.get(Category.LOGITS_AND_LOSS, 0)
    if logits >= _WEIGHTY * peak.total_bytes:
        yield (
            f"transformers 4.x needs up to {format_bytes(copy)} more for logits (it keeps an fp32 copy, or makes a "
            f"shifted one); predicted for transformers {version}"
        )


def installed(environment: Environment) -> str:
    """`DeepSpeed 0.19.8, torch 2.13.0, transformers 5.23.0`: the engine of a run's predictions, by its environment."""
    known = dict(versions(environment))
    return ", ".join(
        f"{title} {known[name]}" for title, name in _PACKAGES.items() if name in _ALWAYS and known.get(name)
    )


def _is_of_5(spec: TrialSpec, version: str) -> bool:
    """True if the model's own loss was predicted under a release after 4."""
    is_own = spec.cross_entropy is CrossEntropy.FULL
    return spec.evidence.plays_one_rank and is_own and version != "" and not version.startswith(("4.", "3."))


def _copy_bytes(spec: TrialSpec) -> int | None:
    """One fp32 copy of a micro-batch's logits; None where a size is not known."""
    vocabulary = dimensions(spec.model).vocab_size
    if vocabulary is None or not (spec.knows("micro_batch_size") and spec.knows("sequence_length")):
        return None
    return _COPY_BYTES * spec.micro_batch_size * spec.sequence_length * vocabulary
