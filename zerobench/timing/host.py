"""What a host needs to issue a decoder's work: the Python of a model and its engine, and the launch of each kernel.

Small work waits for the host. CUDA keeps what was launched and has not begun in a queue of some thousand kernels: so
far, and no further, a host runs ahead of its GPU (a profiled step on an H100 shows launches that block there).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from zerobench.timing.rates import HostRates, shipped_rates
from zerobench.timing.trace import BACKWARD, UPDATE, Kernels, StepTrace

QUEUED_LAUNCHES = 1024


class Issue(NamedTuple):
    """What it takes to issue some work."""

    python_us: float
    """Of the host on which it was measured."""
    launches: float

    def seconds(self, host: HostRates) -> float:
        """On `host`."""
        return self.python_s(host) + self.launches * host.launch_s

    def python_s(self, host: HostRates) -> float:
        """The same without launches."""
        return 1e-6 * self.python_us * host.slower

    def late_s(self, host: HostRates, *, ahead_s: float, beside_s: float) -> float:
        """How long the GPU waits for it, where the host is `ahead_s` ahead when the work before it ends, as far as the
        queue goes, or else some kernels run `beside_s` while it issues others.
        """
        return max(0.0, self.seconds(host) - max(self.queued_s(host, ahead_s), beside_s))

    def queued_s(self, host: HostRates, ahead_s: float) -> float:
        """Of the seconds that the host is ahead, those for which its launches have room in the queue."""
        return min(ahead_s, self.seconds(host) * min(1.0, QUEUED_LAUNCHES / self.launches) if self.launches else 0.0)

    def plus(self, other: Issue) -> Issue:
        """Both."""
        return Issue(self.python_us + other.python_us, self.launches + other.launches)

    def times(self, factor: float) -> Issue:
        """So much of it."""
        return Issue(factor * self.python_us, factor * self.launches)


NOTHING = Issue(0.0, 0.0)


class BlockIssue(NamedTuple):
    """Of one block of a decoder, in each phase of a step."""

    forward: Issue
    backward: Issue
    update: Issue
    """Of all parameters of a block, by a rank that owns them all."""
    reduced: Issue = NOTHING
    """Of `backward`, what comes once a step after all of the pass, since gradients are reduced there."""


_PHASES = BlockIssue._fields[:3]
LLAMAS_TENSORS = 9
"""Parameters of a Llama's block, of which rates.yaml speaks."""
_UNGATED = Issue(0.85, 0.5)
"""Of a Llama's, by a block of GPT's: its norms and activation are one kernel each, and nothing is rotated."""


@cache
def block_issue(
    engine: str,
    *,
    is_gated: bool = True,
    owned: float = 1.0,
    reduces_after: bool = False,
    tensors: int = LLAMAS_TENSORS,
) -> BlockIssue:
    """What `engine` takes a block: a strategy's name, with `-offload` where its states are on the host, and other such
    endings as rates.yaml has. Where it
    `reduces_after` the pass, that is all that it does in backward beyond a plain loop.

    What was not measured goes as what it is built on: a divided decoder as a whole one, offload as its stage. What
    offload adds is for the tensors that a rank owns, the part `owned` of all. Blocks whose MLP has no gate go as GPT's,
    all others as Llama's; what one rank alone adds is for each of a block's `tensors`.
    """
    among_ranks = engine.removesuffix("-alone")
    stage = among_ranks.removesuffix("-offload")
    usual = _measured(stage) or _measured("single")
    forward, backward, update = (
        each.plus(more.plus(each.times(-1)).times(owned))
        for each, more in zip(usual, _measured(among_ranks) or usual, strict=True)
    )
    plain = _measured("single")[1]
    if not is_gated:
        forward, backward, plain = _ungated(forward), _ungated(backward), _ungated(plain)
    if engine != among_ranks:
        forward, backward, update = (
            each.plus(alone.plus(among.times(-1)).times(tensors / LLAMAS_TENSORS))
            for each, among, alone in zip(
                (forward, backward, update), _measured(among_ranks), _measured(engine), strict=True
            )
        )
    return BlockIssue(forward, backward, update, *([backward.plus(plain.times(-1))] if reduces_after else []))


def _measured(engine: str) -> tuple[Issue, ...]:
    found = shipped_rates().issue.get(engine)
    return () if found is None else tuple(Issue(*found[phase]) for phase in _PHASES)


def _ungated(issue: Issue) -> Issue:
    return Issue(_UNGATED.python_us * issue.python_us, _UNGATED.launches * issue.launches)


def launch_seconds(
    trace: StepTrace,
    issue: BlockIssue,
    host: HostRates | None,
    passed: Mapping[str, tuple[float, float]],
    updated: float,
    micro_batches: int = 1,
    *,
    lacking: float = 0.0,
) -> dict[str, float]:
    """Seconds in which the host issues one kernel of each phase of `trace`, its share of the phase's Python with it.

    `passed` has how many blocks a phase passes forward and backward, `updated` how many a rank updates in the mean, of
    which the trace's has some `lacking`; the step has `micro_batches`, of which the trace may lack some.
    """
    if host is None:
        return {}
    forward, backward, update, reduced = issue
    python_s: dict[str, float] = {
        phase: there * forward.python_s(host) + back * backward.python_s(host)
        for phase, (there, back) in passed.items()
    }
    if BACKWARD in passed:
        python_s[BACKWARD] -= (1 - 1 / micro_batches) * passed[BACKWARD][1] * reduced.python_s(host)
    python_s[UPDATE] = updated * update.python_s(host) + lacking * update.launches * host.in_update.launch_s
    launch_s = {UPDATE: host.in_update.launch_s}
    launches: Counter[str] = Counter()
    for phase, item in trace.in_phases():
        if isinstance(item, Kernels):
            launches[phase] += trace.works[item.work].launches
    return {
        phase: launch_s.get(phase, host.launch_s) + python_s.get(phase, 0.0) / count
        for phase, count in launches.items()
        if count
    }
