"""What a host needs to issue a decoder's work: the Python of a model and its engine, and the launch of each kernel.

Small work waits for the host. CUDA keeps what was launched and has not begun in a queue of some thousand kernels: so
far, and no further, a host runs ahead of its GPU (a profiled step on an H100 shows launches that block there).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from zerobench.config.trial.optimizers import Optimizer
from zerobench.config.trial.trial import CrossEntropy, Offload, TrialSpec
from zerobench.estimate.clock.rates import HostRates, shipped_rates
from zerobench.estimate.clock.trace import BACKWARD, UPDATE, Kernels, Product, StepTrace, Work

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

    def less(self, other: Issue) -> Issue:
        """What it has beyond another."""
        return self.plus(other.times(-1))

    def by(self, parts: Issue) -> Issue:
        """`parts` of its Python and of its launches."""
        return Issue(parts.python_us * self.python_us, parts.launches * self.launches)

    def times(self, factor: float) -> Issue:
        """So much of it."""
        return self.by(Issue(factor, factor))


NOTHING = Issue(0.0, 0.0)
HEAD_PRODUCTS = 3
HEAD_LAUNCHES = {CrossEntropy.FULL: 11, CrossEntropy.MODEL_DTYPE: 10, CrossEntropy.CHUNKED: 22, CrossEntropy.LIGER: 4}
"""Kernels of a head's three products and its loss, forward and backward: of all tokens, or of a chunk (counted in
simulated steps; Liger's by its code). An engine has no Python between them."""


OUTSIDE_LAUNCHES = {True: 47, False: 21}
"""Kernels outside of blocks but for the head's, forward and backward, of a Llama and of GPT-2 (counted likewise)."""


BEFORE_BLOCKS = 12
"""Of these, those before a model's first block, where it reads a value of its input."""


class Head(NamedTuple):
    """The output head and its loss, as a trace has them."""

    vocabulary: int
    """A side of its products."""
    launches: float
    """Kernels for each of them, its own with them."""
    loss_s: float
    """Of elementwise work, for each of them."""

    def products(self, phase: str, work: Work) -> tuple[tuple[Product, int], ...]:
        """Its own of `work`; an update has none."""
        own = () if phase == UPDATE else work.products
        return tuple((shape, count) for shape, count in own if self.vocabulary in shape)

    def launched(self, phase: str, work: Work) -> int:
        """Kernels of `work` that are its own."""
        return min(work.launches, round(self.launches * sum(count for _, count in self.products(phase, work))))


class BlockIssue(NamedTuple):
    """Of one block of a decoder, in each phase of a step."""

    forward: Issue
    backward: Issue
    update: Issue
    """Of all parameters of a block, by a rank that owns them all."""
    reduced: Issue = NOTHING
    """Of `backward`, what comes once a step after all of the pass, since gradients are reduced there."""
    after_launches: float = 0.0
    """Of `backward`, kernels after the reduction of the last bucket, were the block in it."""


_PHASES = BlockIssue._fields[:3]
LLAMAS_TENSORS = 9
"""Parameters of a Llama's block, of which rates.yaml speaks."""
_UNGATED = Issue(0.75, 0.45), Issue(0.5, 0.41)
"""Of a Llama's in a plain loop, by a block of GPT's, forward and backward: its norms and activation are one kernel
each, and nothing is rotated."""
_HOOKED = ("ddp", "zero1", "zero2")
"""Engines whose Python in the passes is of hooks on each tensor; that of others is of a block's modules, and no more
for GPT-2's twelve tensors than for a Llama's nine (benchmarks/timing/host_python.py)."""
REDUCE_ONCE = ("ddp", "zero0", "zero0-torch", "zero1")
"""Those that reduce gradients in a step's last micro-batch only (no_sync; engine.py, allreduce_gradients)."""


@cache
def block_issue(
    engine: str,
    *,
    is_gated: bool = True,
    owned: float = 1.0,
    reduces_after: bool = False,
    tensors: int = LLAMAS_TENSORS,
    micro_batches: int = 1,
) -> BlockIssue:
    """What `engine` takes a block, in the mean of a step's `micro_batches`: a strategy's name, with `-offload` where
    its states are on the host, and other such endings as rates.yaml has. Where it `reduces_after` the pass, that is all
    that it does in backward beyond a plain loop.

    What was not measured goes as what it is built on: a divided decoder as a whole one, offload as its stage. Blocks
    whose MLP has no gate go as GPT's, all others as Llama's. An engine adds to a plain loop by a block's `tensors`; at
    stages 1 and 2 half of it is of those that a rank owns (the part `owned` of all), as is all that offload adds there.
    Offload adds once a step.
    """
    stage = engine.removesuffix("-offload")
    plain, usual, own = (_measured(each) for each in ("single", stage, engine))
    by_tensor = Issue(tensors / LLAMAS_TENSORS if stage in _HOOKED else 1.0, tensors / LLAMAS_TENSORS)
    there, back, _ = (more.less(bare).by(by_tensor) for more, bare in zip(usual, plain, strict=True))
    if stage == "zero3" and not is_gated:  # in forward by its gathers, one for each of GPT-2's four matrices of seven
        there = usual[0].less(plain[0]).by(Issue(1.0, 4 / 7))
    owns = owned if stage in {"zero1", "zero2"} else 1.0
    back = back.by(Issue(1.0, (1 + owns) / 2))
    if stage in REDUCE_ONCE and not reduces_after:
        back = back.times(1 / micro_batches)
    offloading = own[1].less(usual[1]).by(by_tensor).times(owns / micro_batches)
    back = back.plus(offloading)
    forward, backward, _ = plain
    if not is_gated:
        forward, backward = (whole.by(part) for whole, part in zip((forward, backward), _UNGATED, strict=True))
    # gradients that are there already are added to: stage 2's in a rank's own part, stage 3's in its reduction
    summed = {"zero2": owned, "zero3": 0.0}.get(stage, 1.0) * tensors * (1 - 1 / micro_batches)
    backward = backward.plus(back).plus(Issue(0.0, summed))
    after = tensors + offloading.launches if stage == "zero3" else 0.0
    return BlockIssue(forward.plus(there), backward, own[2], back if reduces_after else NOTHING, after)


def _measured(engine: str) -> Sequence[Issue]:
    """Of an engine's block; stage 1 offloads as stage 2 does, all others as they go without it."""
    known = shipped_rates().issue
    names = (engine, engine.replace("zero1-", "zero2-"), engine.removesuffix("-offload"), "single")
    found = known[next(name for name in names if name in known)]
    return [Issue(*found[phase]) for phase in _PHASES]


def launch_seconds(
    trace: StepTrace,
    issue: BlockIssue,
    host: HostRates | None,
    passed: Mapping[str, tuple[float, float]],
    updated: float,
    micro_batches: int = 1,
    *,
    lacking: float = 0.0,
    head: Head | None = None,
) -> dict[str, float]:
    """Seconds in which the host issues one kernel of each phase of `trace`, its share of the phase's Python with it; a
    head's have none.

    `passed` has how many blocks a phase passes forward and backward, `updated` how many a rank updates in the mean, of
    which the trace's has some `lacking`; the step has `micro_batches`, of which the trace may lack some.
    """
    if host is None:
        return {}
    forward, backward, update, reduced, _ = issue
    python_s: dict[str, float] = {
        phase: there * forward.python_s(host) + back * backward.python_s(host)
        for phase, (there, back) in passed.items()
    }
    if BACKWARD in passed:
        python_s[BACKWARD] -= (1 - 1 / micro_batches) * passed[BACKWARD][1] * reduced.python_s(host)
    python_s[UPDATE] = updated * update.python_s(host) + lacking * update.launches * host.in_update.launch_s
    launch_s = {UPDATE: host.in_update.launch_s}
    launches: Counter[str] = Counter()
    times = Counter((phase, item.work) for phase, item in trace.in_phases() if isinstance(item, Kernels))
    for (phase, number), count in times.items():
        work = trace.works[number]
        launches[phase] += count * (work.launches - (0 if head is None else head.launched(phase, work)))
    return {
        phase: launch_s.get(phase, host.launch_s) + python_s.get(phase, 0.0) / count
        for phase, count in launches.items()
        if count
    }


UNFUSED = "zero0-torch"


def engine_of(spec: TrialSpec) -> str:
    """As `issue` in rates.yaml has it."""
    if {spec.offload_optimizer, spec.offload_param} != {Offload.NONE}:
        return f"{spec.strategy}-offload"
    if spec.zero_stage == 0 and spec.optimizer is not Optimizer.FUSED_ADAMW:
        return UNFUSED
    return "fsdp-alone" if spec.strategy == "fsdp" and spec.world_size == 1 else spec.strategy
