"""Facts of a training from its log, beside the refusal: versions, and contradictions of a prediction."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Phase, Place, StepKind
from zerobench.records.instants import phase_peak
from zerobench.report.explain.kill_message import killed_in
from zerobench.report.explain.topic import Topic, says
from zerobench.report.explain.torch_message import TorchMessage, messages_in
from zerobench.report.explain.who_asked import phase_of
from zerobench.report.figures.notes import listed
from zerobench.report.figures.trial import TrialFigures

_VERSION = re.compile(
    r"\b(torch|pytorch|deepspeed|transformers|peft|accelerate)[`\"']?"
    r"(?: info: version=|==|[ _]version[`\"']?\s{0,3}(?:[:=]|\.{3,80})\s{0,3}|\s\.{3,80}\s)[`\"']?"
    r"(\d{1,4}\.\d{1,4}[\w.+]{0,30})",
    re.IGNORECASE,
)
"""As DeepSpeed's engine, ds_report, torch's collect_env, transformers' configurations and pip print them."""
_NAMES = {"pytorch": "torch"}
_ORDER = (Phase.INIT, Phase.FORWARD, Phase.BACKWARD, Phase.STEP)
_PHASES = {
    "loading": Phase.INIT,
    "initialization": Phase.INIT,
    "forward": Phase.FORWARD,
    "backward": Phase.BACKWARD,
    "the update": Phase.STEP,
}
"""Phases of who_asked.py that a prediction has."""
WITHOUT_ACTIVATIONS = {"loading", "initialization", "the update", "saving"}
"""Phases in which no activations are held: what makes them smaller does not help."""
_SURELY = 0.95
"""Share of a logged size that a prediction must reach: sizes in a message are rounded."""
_SAME_GPU = 0.05


@dataclass(frozen=True)
class LoggedTraining:
    """Facts of a training in its log; None where the log lacks one."""

    of_host: bool = False
    """Whether host memory ran out, and not a GPU's."""
    capacity_bytes: int | None = None
    """What the process could take of its GPU."""
    attempted_bytes: int | None = None
    """What torch had allocated, with what was refused."""
    phase: str | None = None
    """In the words of who_asked.py."""
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_activations(self) -> bool:
        """True unless memory ran out where no activations are held."""
        return self.phase not in WITHOUT_ACTIVATIONS


def logged_training(text: str) -> LoggedTraining:
    """Read what `text`, a log, tells of the first refusal with a traceback, and of versions."""
    refused = messages_in(text)
    if not refused:
        return LoggedTraining(of_host=killed_in(text) is not None, versions=versions_in(text))
    first = next((message for message in refused if message.frames), refused[0])
    return LoggedTraining(
        of_host=first.on_host,
        capacity_bytes=_capacity(first),
        attempted_bytes=None if first.on_host else _attempted(first),
        phase=phase_of(first.frames),
        versions=versions_in(text),
    )


def _capacity(message: TorchMessage) -> int | None:
    return message.allowed_bytes if message.is_below_a_limit else message.total_bytes


def _attempted(message: TorchMessage) -> int | None:
    if message.allocated_bytes is None or message.asked_bytes is None:
        return None
    return message.allocated_bytes + message.asked_bytes


def versions_in(text: str) -> dict[str, str]:
    """Return the versions of packages that a log names, by package; the last word of each."""
    found = ((match[1].lower(), match[2]) for match in _VERSION.finditer(text))
    return {_NAMES.get(name, name): version for name, version in found}


def versions_topic(logged: LoggedTraining) -> list[Topic]:
    """The versions in the log; no topic where it names none."""
    texts = [f"{name} {version}" for name, version in sorted(logged.versions.items())]
    return [Topic("Versions in the log", says(", ".join(texts)), {"versions": dict(logged.versions)})] if texts else []


def contradictions_topic(
    logged: LoggedTraining, row: TrialFigures | None, catalogued_bytes: int | None, releases: Mapping[str, str | None]
) -> list[Topic]:
    """Return the contradictions between the log and the prediction of its training, one line each.

    `catalogued_bytes`: the memory of the GPU that was named; `releases`: those that the prediction was made with.
    """
    lines = [
        *_other_gpu(logged, catalogued_bytes),
        *(_first(_other_memory(logged, row)) if row is not None and not logged.of_host else ()),
        *_other_releases(logged, releases),
    ]
    return [Topic("The log says otherwise", says(*lines), {"contradictions": lines})] if lines else []


def _first(sentences: Iterator[str]) -> list[str]:
    sentence = next(sentences, None)
    return [] if sentence is None else [sentence]


def _other_gpu(logged: LoggedTraining, catalogued_bytes: int | None) -> Iterator[str]:
    seen = logged.capacity_bytes
    if seen and catalogued_bytes and abs(seen / catalogued_bytes - 1) > _SAME_GPU:
        yield (
            f"GPU memory: {format_bytes(seen)} in the log, {format_bytes(catalogued_bytes)} in the catalogue for "
            "--gpu; the log's is taken."
        )


def _other_memory(logged: LoggedTraining, row: TrialFigures) -> Iterator[str]:
    """The phases that the log passed and the prediction does not, then what was allocated and is not predicted."""
    phase = _PHASES.get(logged.phase or "")
    ask = "check model, micro batch, sequence length and checkpointing"
    if phase is not None and logged.capacity_bytes is not None:
        for passed in _ORDER[: _ORDER.index(phase)]:
            peak_bytes = _peak(row, passed, smallest=True)
            if peak_bytes is not None and peak_bytes > logged.capacity_bytes:
                yield (
                    f"{passed.value.capitalize()} passed with {format_bytes(logged.capacity_bytes)}; the prediction "
                    f"needs {format_bytes(peak_bytes)} there: {ask}."
                )
    peaks = [_peak(row, one) for one in (_ORDER if phase is None else (phase,))]
    known = [size for size in peaks if size is not None]
    if logged.attempted_bytes is not None and known and max(known) < _SURELY * logged.attempted_bytes:
        where = "" if phase is None else f" in {logged.phase}"
        yield (
            f"{format_bytes(logged.attempted_bytes)} were allocated or requested{where}; the prediction's peak there "
            f"is {format_bytes(max(known))}: {ask}."
        )


def _peak(row: TrialFigures, phase: Phase, *, smallest: bool = False) -> int | None:
    """The largest rank's peak of tensors in a phase; of the first and a steady step the larger, or the smaller."""
    by_step = []
    for step in StepKind:
        instants = (phase_peak(rank, step, phase, Place.DEVICE) for rank in row.trial.ranks)
        if sizes := [instant.total_bytes for instant in instants if instant is not None]:
            by_step.append(max(sizes))
    return (min if smallest else max)(by_step) if by_step else None


def _other_releases(logged: LoggedTraining, releases: Mapping[str, str | None]) -> Iterator[str]:
    others = [
        f"{name} {version} ({ours})"
        for name, version in sorted(logged.versions.items())
        if (ours := releases.get(name)) and _release(ours) != _release(version)
    ]
    if others:
        yield f"Versions in the log, and in the prediction: {listed(others)}."


def _release(version: str) -> Sequence[str]:
    """Without what a build adds: 2.5.1+cu124."""
    return version.partition("+")[0].split(".")
