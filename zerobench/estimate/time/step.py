"""The expected time of a step: computing, what communication adds to it, the update, and how sure that is.

Communication that overlaps with computing adds what is longer than the computing of all blocks but one, and the one
block that nothing runs beside: the first gather, or the last reduction. What is hidden makes computing slower, since
both use the GPU. What does not overlap adds up whole. What is reduced in buckets follows them. All ranks wait for the
slowest, the longer the more there are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from zerobench.estimate.clock.rates import Rates
from zerobench.estimate.time.passes import Passes


class Bucket(NamedTuple):
    """Gradients that are reduced together."""

    ready: float
    """Share of the backward pass after which they are handed on."""
    share: float
    """Of all that a backward pass reduces."""


@dataclass(frozen=True)
class Phases:
    """Seconds of collectives in the passes of a micro-batch that has any, and in the update after them."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    update_s: float = 0.0
    rounds: int | None = None
    """Micro-batches that have any; None: all."""
    first_forward_s: float | None = None
    """In the first of them in place of `forward_s`, where that is not as the others."""
    reduced_s: float = 0.0
    """Of `backward_s`, of gradients in `buckets`."""
    buckets: tuple[Bucket, ...] = ()
    """As they are reduced; none: a block at a time."""
    reduces_apart: bool = True
    """Whether that goes on beside computing, and not on its stream."""
    reduces_after: bool = False
    """Whether it begins when the pass is done."""
    copied_s: tuple[float, float] = (0.0, 0.0)
    """Of copies to the device before gathers, forward and backward."""
    awaited_s: float = 0.0
    """Of `backward_s`, what the host waits for before it issues more."""
    first_share: float = 0.0
    """Of `forward_s`, what is gathered before any block runs; at least a block's."""
    last_share: float = 0.0
    """Of `reduced_s` without buckets, what is reduced when all has run; at least a block's."""
    is_within: bool = False
    """Whether blocks have them within, on the stream that computes: only the host goes on meanwhile."""


def step(
    computing: Passes,
    micro_batches: int,
    communication: Phases,
    update_s: float,
    rates: Rates,
    *,
    ranks: int,
    overlaps: bool,
) -> tuple[float, float, float]:
    """Seconds of computing, of communication that nothing hides, and of the update with its own communication.

    `communication` is that of the passes of one micro-batch that has any, and of the update.
    """
    compute = micro_batches * (computing.forward_s + computing.backward_s) * rates.slower(ranks)
    rounds = micro_batches if communication.rounds is None else communication.rounds
    exposed = rounds * sum(exposed_s(computing, communication, rates, overlaps=overlaps))
    if communication.first_forward_s is not None:
        first = replace(communication, forward_s=communication.first_forward_s)
        usual, other = (exposed_s(computing, each, rates, overlaps=overlaps)[0] for each in (communication, first))
        exposed += other - usual
    return compute, exposed, update_s + communication.update_s + rates.between_s(micro_batches)


@dataclass(frozen=True)
class _Pass:
    """All blocks of a forward or backward pass, which collectives may run beside."""

    layers: int
    whole_s: float
    idle_s: float
    """Of it, in which the device waits for the host."""
    overlaps: bool
    contention: float

    def left_s(self, moving_s: float, copied_s: float = 0.0, *, bare_s: float = 0.0) -> tuple[float, float]:
        """Seconds that collectives add, and those in which they run beside kernels: less than none, where the device
        waits longer for the host.

        The host goes on meanwhile, but for `bare_s`. Copies before them take no multiprocessor from a kernel, and the
        host waits with the device. Those of a rank alone are on its one stream, beside which only the host goes on.
        """
        if not moving_s:
            return max(0.0, copied_s - self.idle_s), -self.idle_s
        if copied_s or not self.overlaps:
            hidden = self._hidden_s(moving_s + copied_s, self.whole_s)
            contending_s = hidden * moving_s / (moving_s + copied_s)
            return moving_s + copied_s - hidden, max(0.0, contending_s - self.idle_s)
        hidden = self._hidden_s(moving_s, self.whole_s - self.idle_s)
        added_s = max(bare_s, moving_s - hidden - self.idle_s)
        return added_s, moving_s - added_s - self.idle_s

    def waited_s(self, gathering_s: float, reducing_s: float = 0.0, *, apart: bool = True) -> float:
        """The same where the host goes on, beside gradients that are reduced on a stream `apart` or on the device's."""
        hidden = self._hidden_s(gathering_s, self.whole_s - self.idle_s - reducing_s)
        slowing_s, idle_s = (hidden + reducing_s, self.idle_s) if apart else (hidden, self.idle_s - reducing_s)
        return max(0.0, gathering_s - hidden + self.contention * slowing_s - idle_s)

    def _hidden_s(self, moving_s: float, beside_s: float) -> float:
        return hidden_s(moving_s, max(0.0, beside_s), self.layers) if self.overlaps else 0.0


def exposed_s(computing: Passes, communication: Phases, rates: Rates, *, overlaps: bool) -> tuple[float, float]:
    """Seconds of communication that nothing hides in a forward and in a backward pass, and by which it slows kernels.

    While the device waits for what is gathered, the host goes on, and the device waits once for both; not so for
    gradients that are left to reduce at the end, nor for FSDP's first gather, after which a model reads a value of its
    input. What is hidden is counted as in a replay: what collectives and kernels take longer than both passes together.
    """
    layers = computing.layers
    forward, backward = (
        _Pass(layers, layers * block_s, layers * idle_s, overlaps, rates.contention)
        for block_s, idle_s in (
            (computing.block_forward_s, computing.idle_forward_s),
            (computing.block_backward_s, computing.idle_backward_s),
        )
    )
    if communication.is_within:
        moved = (forward, communication.forward_s), (backward, communication.backward_s)
        there_s, back_s = (max(0.0, moving_s - each.idle_s) for each, moving_s in moved)
        return there_s, back_s
    if not communication.buckets:
        (up_s, up_again_s), awaited_s = communication.copied_s, communication.awaited_s
        moved_s, last_s = communication.forward_s, last_reduced_s(computing, communication)
        first_s = max(0.0, moved_s * max(1 / layers, communication.first_share) - computing.before_s)
        there_s, beside_s = forward.left_s(moved_s, up_s, bare_s=first_s)
        back_s, beside_again_s = backward.left_s(communication.backward_s - awaited_s, up_again_s, bare_s=last_s)
        there_s += rates.contention * max(0.0, beside_s + min(0.0, beside_again_s))
        back_s += rates.contention * max(0.0, beside_again_s + min(0.0, beside_s))
        return there_s, awaited_s + back_s
    reduced_s = communication.reduced_s
    reducing_s = hidden_reducing_s(reduced_s, computing, communication)
    if communication.reduces_after:
        return forward.waited_s(communication.forward_s), reduced_s - reducing_s
    gathered_s, there_s = communication.backward_s - reduced_s, forward.waited_s(communication.forward_s)
    # while the device waited forward, the host went on with backward, where it then waits less for the host
    ahead_s = min(there_s, computing.room_s, backward.idle_s)
    backward = replace(backward, whole_s=backward.whole_s - ahead_s, idle_s=backward.idle_s - ahead_s)
    waited_s = backward.waited_s(gathered_s, reducing_s, apart=communication.reduces_apart)
    return there_s - ahead_s, reduced_s - reducing_s + waited_s


def last_reduced_s(computing: Passes, communication: Phases) -> float:
    """Seconds of the last reduction of a backward pass that gradients are reduced in block by block: the host has
    nothing of it left to issue. None of what the host waits for.
    """
    share = max(1 / computing.layers, communication.last_share)
    return share * max(0.0, communication.reduced_s - communication.awaited_s)


def hidden_s(moving_s: float, beside_s: float, layers: int) -> float:
    """Seconds of moving that go on beside what all blocks but one do."""
    return min(moving_s, beside_s) * (layers - 1) / layers


def hidden_reducing_s(moving_s: float, computing: Passes, communication: Phases) -> float:
    """Of seconds in which gradients move in buckets, one after another, what makes a backward pass no longer.

    On a stream of their own they go on beside it once the first bucket is full. On its own the GPU computes after each,
    and the host, which goes on launching, makes up for what the GPU has waited for it, as it does after the last one.
    After the pass nothing is hidden, and a bucket may wait for the host, too: less than nothing.
    """
    buckets, backward_s = communication.buckets, computing.backward_s
    if not buckets:
        return 0.0
    end_s = 0.0
    if communication.reduces_after:
        issued_s = -computing.ahead_s
        for _, share in buckets:
            issued_s += share * computing.reducing_issued_s
            end_s = max(end_s, issued_s) + share * moving_s
        return moving_s - end_s
    idle_s = computing.layers * computing.idle_backward_s
    kernels_s = 0.0 if communication.reduces_apart else backward_s - idle_s
    after_s = min(computing.after_s, max(0.0, idle_s - communication.backward_s + communication.reduced_s))
    before = 0.0
    for ready, share in buckets:
        at_s = ready * backward_s - (share * after_s if ready == 1.0 else 0.0)
        end_s = max(end_s + (ready - before) * kernels_s, at_s) + share * moving_s
        before = ready
    return moving_s - max(0.0, end_s - backward_s)
