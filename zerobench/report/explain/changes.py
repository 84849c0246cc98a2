"""Changes that make a training fit, as they are shown wherever one ran out of memory: what each needs and costs.

Who tries them, in which world, is no matter here: a plan's prediction and a script's emulation come to the same rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zerobench.common.units import format_bytes
from zerobench.report.explain.topic import Topic, says
from zerobench.report.figures.fit import Space
from zerobench.report.figures.trial import TrialFigures

MOST = 3
"""Changes that are shown: those that change least, and of these the fastest."""
_AS_FAST = 0.005
_MOST_PARTS = 6


@dataclass(frozen=True)
class ChangeOutcome:
    """One change, or several together, that was tried."""

    says: tuple[str, ...]
    fits: bool
    needed_bytes: int | None
    """Need of one GPU; None of CPU ranks, which have none."""
    host_node_bytes: int | None = None
    """Need of a node's memory, where it holds anything that is judged; or of `on_host` otherwise."""
    slower: float | None = None
    """Expected increase in step time as a share; None if the time of either is not known."""
    on_host: str = "a node's memory"
    on_cpu: bool = False
    """True for CPU ranks, which have no GPU and no expected time."""

    @property
    def text(self) -> str:
        """`micro batch 1 instead of 4: 58.10 GiB per GPU, 9% slower`."""
        device = "" if self.on_cpu else f"{format_bytes(self.needed_bytes)} per GPU"
        host = "" if not self.host_node_bytes else f"{format_bytes(self.host_node_bytes)} of {self.on_host}"
        needs = " and ".join(filter(None, (device, host)))
        cost = "" if self.on_cpu else f", {slower_text(self.slower)}"
        return f"{', '.join(self.says)}: {needs}{cost}"


def share_slower(step_s: float | None, unchanged_s: float | None) -> float | None:
    """By which share the one is longer than the other."""
    return None if step_s is None or not unchanged_s else step_s / unchanged_s - 1


def slower_text(slower: float | None) -> str:
    """Cost of a change in expected time, in words."""
    if slower is None:
        return "step time unknown"
    if abs(slower) < _AS_FAST:
        return "same speed"
    if slower >= 1:
        return f"{1 + slower:.1f} times the step time"  # 161% slower would be read as 1.6 times
    return f"{abs(slower):.0%} {'slower' if slower > 0 else 'faster'}"


def smallest(tried: Sequence[ChangeOutcome], most: int = MOST) -> list[ChangeOutcome]:
    """Changes that fit: single ones before several together, and of as many the fastest first."""
    fitting = [change for change in tried if change.fits]
    order = {id(change): at for at, change in enumerate(fitting)}
    return sorted(
        fitting, key=lambda change: (len(change.says), change.slower is None, change.slower or 0, order[id(change)])
    )[:most]


def changes_topic(tried: Sequence[ChangeOutcome]) -> Topic:
    """The smallest that fit, as predicted."""
    changes = smallest(tried)
    title = "Changes that fit (predicted)" if changes else f"No change fits, of {len(tried)} predicted"
    near = min((change for change in tried if _needed(change)), key=_needed, default=None)
    least = [] if changes or near is None else says(f"Closest: {near.text}.")
    figures: dict[str, Any] = {
        "changes": [
            {
                "changes": list(change.says),
                "needed_bytes": change.needed_bytes,
                "host_node_bytes": change.host_node_bytes,
                "expected_slower": change.slower,
            }
            for change in changes
        ]
    }
    if any(change.on_cpu for change in tried):
        figures["cost_basis"] = None  # a key of older releases, which expected times of CPU ranks
    return Topic(title, [*says(*(change.text for change in changes)), *least], figures)


def unchanged_topic(row: TrialFigures | None) -> list[Topic]:
    """Needs of a configuration as it is, by category."""
    if row is None or row.device.needed_bytes is None:
        return []
    space, instant = row.device, row.steady_peak
    held = sorted(() if instant is None else instant.categories.items(), key=lambda item: -item[1])
    parts = [f"{name.words}: {format_bytes(size)}" for name, size in held[:_MOST_PARTS] if size]
    lines = [*says(_fit("each GPU's", space, row.need_moments)), *says(*parts, depth=1)]
    if row.host.room is not None:
        lines += says(_fit("a node's", row.host))
    return [Topic("Unchanged, predicted", lines, {"needed_bytes": space.needed_bytes, "fits": row.fits})]


def _fit(whose: str, space: Space, when: str = "") -> str:
    needs = f"Needs {format_bytes(space.needed_bytes)} of {whose} {format_bytes(space.capacity_bytes)}"
    return f"{needs}{when and f' {when}'}: {'fits' if space.fits else 'does not fit'}."


def _needed(change: ChangeOutcome) -> int:
    return change.needed_bytes or change.host_node_bytes or 0
