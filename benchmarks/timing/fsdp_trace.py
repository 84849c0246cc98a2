"""The issue order of the published rows' engine, FSDP with FULL_SHARD, as a trace for zerobench.estimate.clock.replay.

By torch/distributed/fsdp (BACKWARD_PRE, limit_all_gathers): a block is gathered while the one before it computes, and
no sooner than the one before that has let its memory go; its gradients are reduced beside the next one's backward pass.
The root (embeddings, which the head shares) is gathered once a micro-batch and reduced last.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from zerobench.estimate.clock.kernels import attention_flops
from zerobench.estimate.clock.rates import Rates
from zerobench.estimate.clock.trace import CollectiveWait, EventRecord, EventWait, PhaseStart, Recorder, StepTrace
from zerobench.estimate.time.passes import Decoder, elementwise_bytes, linears, loss_bytes

_COMPUTE, _GATHER, _REDUCE = 0, 1, 2
_IN_FLIGHT = 2
"""Blocks that are gathered at the same time."""


@dataclass
class Fsdp:
    """One rank's step."""

    decoder: Decoder
    rates: Rates
    tokens: int
    positions: int
    recomputed: float
    ranks: int
    nodes: int
    block_bytes: int
    root_bytes: int
    gradient_scale: float
    """Bytes of a gradient as it is reduced over those of a parameter."""
    gathers: int
    """Of each block in a micro-batch."""
    update_bytes: float
    _recorder: Recorder = field(default_factory=Recorder)
    _done: list[int] = field(default_factory=list)
    """Events of blocks whose computing has ended."""

    def trace(self, micro_batches: int) -> StepTrace:
        """The whole step."""
        for _ in range(micro_batches):
            self._forward()
            self._backward()
        self._recorder.add(PhaseStart("step"))
        self._recorder.kernel(_COMPUTE, moved_bytes=round(self.update_bytes))
        trace = self._recorder.trace()
        if trace is None:
            raise ValueError("micro_batches: none")
        return trace

    def _forward(self) -> None:
        self._recorder.add(PhaseStart("forward"))
        coming = [self._gather(self.root_bytes), *[self._gather(self.block_bytes) for _ in range(_IN_FLIGHT - 1)]]
        self._await(coming.pop(0))
        for block in range(self.decoder.layers):
            if block + _IN_FLIGHT - 1 < self.decoder.layers:
                coming.append(self._gather(self.block_bytes))
            self._await(coming.pop(0))
            self._block(is_backward=False)
            self._end()
        self._head(is_backward=False)

    def _backward(self) -> None:
        self._recorder.add(PhaseStart("backward"))
        again = self.gathers > 1
        self._head(is_backward=True)
        coming = [self._gather(self.block_bytes)] if again else []
        for block in reversed(range(self.decoder.layers)):
            if again and block:
                coming.append(self._gather(self.block_bytes))
            if again:
                self._await(coming.pop(0))
            if self._is_recomputed(block):
                self._block(is_backward=False)
            self._block(is_backward=True)
            self._end()
            self._reduce(self.block_bytes)
        self._await(self._reduce(self.root_bytes))

    def _is_recomputed(self, block: int) -> bool:
        return int((block + 1) * self.recomputed) > int(block * self.recomputed)

    def _gather(self, nbytes: int) -> int:
        if len(self._done) >= _IN_FLIGHT:
            self._recorder.add(EventWait(_GATHER, self._done[1 - _IN_FLIGHT]))
        return self._recorder.call(_GATHER, "all_gather", self.ranks, self.nodes, nbytes)

    def _reduce(self, nbytes: int) -> int:
        self._recorder.add(EventWait(_REDUCE, self._done[-1]))
        size = round(nbytes * self.gradient_scale)
        return self._recorder.call(_REDUCE, "reduce_scatter", self.ranks, self.nodes, size)

    def _await(self, call: int) -> None:
        self._recorder.add(CollectiveWait(_COMPUTE, call))

    def _end(self) -> None:
        self._recorder.add(EventRecord(_COMPUTE, len(self._done)))
        self._done.append(len(self._done))

    def _block(self, *, is_backward: bool) -> None:
        for inputs, outputs in linears(self.decoder):
            self._linear(inputs, outputs, is_backward=is_backward)
        flops = attention_flops(self.tokens, self.positions, self.decoder.attention_width)[is_backward]
        self._recorder.attention(_COMPUTE, round(flops), is_backward=is_backward)
        moved = elementwise_bytes(self.decoder, self.rates, self.tokens)[is_backward]
        self._recorder.kernel(_COMPUTE, moved_bytes=round(moved))

    def _linear(self, inputs: int, outputs: int, *, is_backward: bool) -> None:
        shapes = [(self.tokens, inputs, outputs), (inputs, outputs, self.tokens)]
        for shape in shapes if is_backward else [(self.tokens, outputs, inputs)]:
            self._recorder.kernel(_COMPUTE, shape)

    def _head(self, *, is_backward: bool) -> None:
        self._linear(self.decoder.hidden, self.decoder.vocabulary, is_backward=is_backward)
        share = 2 / 3 if is_backward else 1 / 3
        self._recorder.kernel(_COMPUTE, moved_bytes=round(share * loss_bytes(self.decoder, self.rates, self.tokens)))
