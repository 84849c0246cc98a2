"""Choice of the trials that a chart shows, and the sentences of its caption and marks."""

from collections import Counter
from collections.abc import Callable, Sequence

from zerobench.common.units import format_bytes
from zerobench.config.trial.trial import Evidence
from zerobench.report.figures.batch_ramp import HasSpec
from zerobench.report.figures.trial import TrialFigures

MOST_ROWS = 30
"""Trials in a chart with a row for each: what a person can read."""
OWN_AXIS = " (own axis)"
"""After a panel's title."""
_FLATTENS = 3


def whole(trials: Sequence[TrialFigures]) -> list[TrialFigures]:
    """Those whose figures are of all their work."""
    return [trial for trial in trials if trial.is_whole]


def most_telling(
    trials: Sequence[TrialFigures], size_bytes: Callable[[TrialFigures], float], most: int = MOST_ROWS
) -> list[TrialFigures]:
    """At most `most` of `trials`, in their order: of each strategy and offload in turn the largest left.

    Every stage and offload is thus seen before one is seen twice, and of those that are equal in both and in size one
    is enough.
    """
    if len(trials) <= most:
        return list(trials)
    sized = {(_kind(trial), size_bytes(trial)): trial for trial in reversed(trials)}
    places = {id(trial): place for place, trial in enumerate(trials)}
    placed = sorted(((kind, size, places[id(trial)]) for (kind, size), trial in sized.items()), key=lambda row: row[2])
    seen: Counter[object] = Counter()
    turns = []
    for kind, size, place in sorted(placed, key=lambda row: -row[1]):
        turns.append((seen[kind], -size, place))
        seen[kind] += 1
    chosen = sorted(turns, key=lambda row: row[:2])[:most]
    return [trials[place] for place in sorted(place for _, _, place in chosen)]


def _kind(trial: TrialFigures) -> object:
    spec = trial.spec
    return spec.strategy, spec.offload_optimizer, spec.offload_param, spec.evidence


def shown_sentence(shown: int, known: int) -> str:
    """Sentence of a caption on trials that are left out; empty where none are."""
    if shown >= known:
        return ""
    return f" {shown} of {known:,} trials: the largest of each stage and offload."


def evidence_sentence(trials: Sequence[HasSpec]) -> str:
    """Sentence of a caption on which of `trials` are measured."""
    predicted = [trial for trial in trials if trial.spec.evidence is not Evidence.MEASURED]
    if not predicted:
        return ""
    kinds = ", ".join(sorted({trial.spec.evidence.value for trial in predicted}))
    if len(predicted) == len(trials):
        return f" Predicted ({kinds})."
    return f" Hatched or hollow: predicted ({kinds})."


def doubt_sentence(trials: Sequence[TrialFigures]) -> str:
    """Sentence of a caption that explains the mark of trials that are not believed."""
    if all(trial.is_believed for trial in trials):
        return ""
    return " `!`: losses or gradient norms differ from the reference."


def ending(trials: Sequence[TrialFigures], shown: int, known: int) -> str:
    """End of a caption: which of `trials` are measured and believed, and how many of those known are shown."""
    return evidence_sentence(trials) + doubt_sentence(trials) + shown_sentence(shown, known)


def axis_top(top: float, tops: Sequence[float]) -> tuple[float, bool]:
    """End of a panel's axis that reaches `top`, beside panels that reach `tops` (its own among them), and whether it
    has it alone: the largest does where it would flatten the others, being more than thrice the next.
    """
    *_, second, largest = [0.0, *sorted(tops)]
    if len(tops) > 2 and largest > _FLATTENS * second:
        return (top, True) if top == largest else (second, False)
    return largest, False


def share(part: float, whole: float) -> str:
    """`41%`, or `0.4%` below one; `-` of nothing."""
    if not whole:
        return "-"
    percent = 100 * part / whole
    if 0 < abs(percent) < 0.1:
        return "less than 0.1%"
    return f"{percent:.0f}%" if abs(percent) >= 1 or percent == 0 else f"{percent:.1f}%"


def part_sentence(label: str, part: str, num_bytes: float, whole: float) -> str:
    """Text on hovering over a part of a bar: `zero2, gradients: 3.21 GiB, 41% of the peak`."""
    return f"{label}, {part}: {format_bytes(num_bytes)}, {share(num_bytes, whole)} of the peak"
