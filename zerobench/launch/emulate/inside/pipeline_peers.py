"""What comes to a stage of DeepSpeed's pipeline from the stage before it, where that one is not there.

A stage learns the shapes that it is sent from its neighbour's first message (deepspeed/runtime/pipe/engine.py,
_recv_tensor_meta). Here they are found: the layers before this stage's are built on torch's meta device, where a tensor
is a shape and nothing else, and a micro batch goes through them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

_META = torch.device("meta")


class StagesBefore:
    """The stages before one engine's."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._iterator: Iterator[Any] | None = None
        """Of a middle stage, which reads no batches and throws away what the script gives it."""

    def install(self) -> None:
        """Answer for them, on the instance alone."""
        engine = self._engine
        if engine.is_first_stage():
            return
        engine._recv_tensor_meta = self._received
        if not engine.is_last_stage():
            engine.set_dataiterator = partial(setattr, self, "_iterator")
            if engine.training_dataloader is not None:
                self._iterator = iter(engine.training_dataloader)

    def _received(self, _send_stage: int) -> Any:
        """As the engine's own: buffers for what the stage before sends."""
        engine = self._engine
        if engine.is_pipe_partitioned:
            raise NotImplementedError(
                "zerobench emulate: with activations partitioned over tensor-parallel ranks, only the "
                "first pipeline stage can be emulated: --ranks 0"
            )
        sent = _passed_on(engine, _on_meta(self._batch()[0]))
        if isinstance(sent, torch.Tensor):
            return engine._allocate_or_extend_buffers(0, list(sent.shape), sent.dtype)
        dtypes = [tensor.dtype for tensor in sent]
        if engine.has_attention_mask or engine.has_bool_tensors:
            dtypes[-1] = torch.float16  # as _exec_send_activations sends it
        shapes = [list(part.shape) for part in sent]
        return tuple(map(engine._allocate_or_extend_buffers, range(len(shapes)), shapes, dtypes))

    def _batch(self) -> Any:
        """The next micro batch, which is still to come to whoever asks for it."""
        engine = self._engine
        batches = engine.data_iterator if engine.is_last_stage() else self._iterator
        if batches is None:
            raise RuntimeError(
                "zerobench emulate: the input of this pipeline stage needs a batch, which the script "
                "does not give it; emulate the first or the last stage: --ranks 0,last"
            )
        batch = next(batches)
        if engine.is_last_stage():  # which loads it, labels and all
            engine.data_iterator = put_back(batch, batches)
        return engine.batch_fn(batch) if engine.batch_fn else batch


def put_back(batch: Any, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield `batch` once more, then the others; it is released when it is handed out, as the script's own iterator
    would (itertools.chain keeps it until the next one).
    """
    ahead = [batch]
    del batch
    yield ahead.pop()
    yield from batches


def _on_meta(given: Any) -> Any:
    if isinstance(given, torch.Tensor):
        return torch.empty_like(given, device=_META)
    return tuple(_on_meta(value) for value in given)


def _passed_on(engine: Any, inputs: Any) -> Any:
    """What the layers before this stage's make of `inputs`."""
    module = engine.module
    tied: dict[str, torch.nn.Module] = {}
    # To which the engine converts its layers; None: it leaves them as they are.
    dtype = torch.bfloat16 if engine.bfloat16_enabled() else torch.float16 if engine.fp16_enabled() else None
    with torch.no_grad(), _META:
        for spec in module._layer_specs[: module._local_start]:
            inputs = _layer(spec, tied, dtype)(inputs)
    return inputs


def _layer(spec: Any, tied: dict[str, torch.nn.Module], dtype: torch.dtype | None) -> Callable[[Any], Any]:
    """One layer, as the engine builds it (deepspeed/runtime/pipe/module.py, _build), without memory."""
    from deepspeed.runtime.pipe.module import LayerSpec, TiedLayerSpec

    if isinstance(spec, torch.nn.Module):
        return lambda inputs: torch.func.functional_call(spec, _shapes(spec, dtype), (inputs,))
    if not isinstance(spec, LayerSpec):
        return spec  # type: ignore[no-any-return] # a function of the script's
    if not isinstance(spec, TiedLayerSpec):
        return _built(spec, dtype)
    if spec.key not in tied:
        tied[spec.key] = _built(spec, dtype)
    forward = spec.forward_fn
    return tied[spec.key] if forward is None else lambda inputs: forward(tied[spec.key], inputs)


def _built(spec: Any, dtype: torch.dtype | None) -> torch.nn.Module:
    module: torch.nn.Module = spec.build()
    return module if dtype is None else module.to(dtype)


def _shapes(module: torch.nn.Module, dtype: torch.dtype | None) -> dict[str, torch.Tensor]:
    named = itertools.chain(module.named_parameters(), module.named_buffers())
    return {
        name: torch.empty_like(tensor, device=_META, dtype=dtype if tensor.is_floating_point() else None)
        for name, tensor in named
    }
