"""What a comparison comes to, in one to three sentences: the gate's verdict, then what got worst."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zerobench.report.compare.comparison import Comparison
from zerobench.report.compare.gate import Verdict, gate_sentence, memory_sentence, outcome, speed_sentence


def headline(comparison: Comparison, verdicts: Sequence[Verdict]) -> list[str]:
    """The verdict where a gate was asked for, and the worst of memory and of speed, each said once."""
    opening = [gate_sentence(verdicts)] if verdicts else []
    return [*opening, *(line for line in _worst(comparison) if not any(line in sentence for sentence in opening))]


def _worst(comparison: Comparison) -> Iterator[str]:
    stopped = next((same for same in comparison.same if same.stopped_completing), None)
    if stopped is not None:
        yield f"{stopped.label}, {outcome(stopped)}"
    grown = max(comparison.peaks, key=lambda peak: peak.growth, default=None)
    if grown is not None and grown.more_bytes > 0:
        yield f"{grown.label}, {memory_sentence(grown)}"
    elif stopped is None:
        yield "No peak grew"
    speeds = [(same.label, same.speed) for same in comparison.same if same.speed is not None]
    if slower := [(label, speed) for label, speed in speeds if speed.verdict == "slower"]:
        label, speed = max(slower, key=lambda pair: pair[1].change.ratio)
        yield f"{label}, {speed_sentence(speed)}"
