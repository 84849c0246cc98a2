"""Writes checkpoints of a model's shape in the hub's format, and reads them with transformers' `from_pretrained`.

transformers reads them like a user's: from the mapped file, in the requested type, under zero.Init if it is configured
for stage 3 (integrations/deepspeed.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import torch

from zerobench.config.trial.trial import TrialSpec, Weights
from zerobench.rank.ledger.storages import StorageCounter
from zerobench.rank.training.transformers_names import dtype_argument, skip_initialization

SHARD_BYTES = 5 * 10**9
"""Largest file (or one tensor), like most checkpoints of the hub."""
INDEX = "model.safetensors.index.json"
TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
"""Names of types in a header."""

Value = Callable[[str, torch.Size], torch.Tensor]
"""Maps name and shape of a parameter to its values."""


def write_checkpoint(
    folder: Path, hf_config: Mapping[str, Any], dtype: torch.dtype, value: Value | None, shard_bytes: int = SHARD_BYTES
) -> int:
    """Write config.json, shards of at most `shard_bytes` (or of one tensor) and their index; returns the weights'
    bytes.

    Only one tensor is in memory at a time. Without `value` the files are sparse and take no space.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**hf_config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    config.architectures, config.dtype = [type(model).__name__], dtype
    config.save_pretrained(folder)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}  # a tied head is in no file
    shards = list(_shards(shapes, shard_bytes, dtype))
    where: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_shard(folder / name, {key: shapes[key] for key in shard}, dtype, value)
        where |= dict.fromkeys(shard, name)
    total: int = sum(shape.numel() for shape in shapes.values()) * dtype.itemsize
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
    return total


def _write_shard(path: Path, shapes: Mapping[str, torch.Size], dtype: torch.dtype, value: Value | None) -> None:
    """Write one safetensors file: eight bytes with the header's length, the header, then all tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + shape.numel() * dtype.itemsize
        header[name] = {"dtype": TYPES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        if value is not None:
            for name, shape in shapes.items():
                values: Any = value(name, shape).to(dtype).cpu().contiguous().view(torch.uint8).numpy()
                file.write(memoryview(values).cast("B"))
        file.truncate(8 + len(text) + end)


def _shards(shapes: Mapping[str, torch.Size], most_bytes: int, dtype: torch.dtype) -> Iterator[list[str]]:
    shard: list[str] = []
    filled = 0
    for name, shape in shapes.items():
        nbytes = shape.numel() * dtype.itemsize
        if shard and filled + nbytes > most_bytes:
            yield shard
            shard, filled = [], 0
        shard.append(name)
        filled += nbytes
    yield shard


@contextmanager
def announce_stage_3(ds_config: Mapping[str, Any]) -> Iterator[None]:
    """Announce a stage 3 configuration to transformers while open, so that it partitions the weights it loads."""
    from transformers.integrations import HfDeepSpeedConfig, unset_hf_deepspeed_config

    config = HfDeepSpeedConfig(dict(ds_config))  # transformers keeps a weak reference
    try:
        yield
    finally:
        del config
        unset_hf_deepspeed_config()


def read_checkpoint(folder: Path, trial: TrialSpec, dtype: torch.dtype, attention: str, device: torch.device) -> Any:
    """Read the model of `folder` on the host, then move it to the device and the trial's type, weight by weight.

    Weights that transformers partitioned while reading are already on the device.
    """
    from transformers import AutoModelForCausalLM

    # transformers' threads, which hold one tensor each, would allocate out of the ledger's sight.
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
    read_as = torch.float32 if trial.weights is Weights.LOADED_FP32 else dtype
    how: dict[str, Any] = {**dtype_argument(read_as), "attn_implementation": attention, "use_cache": False}
    with skip_initialization():  # else where torch's compiler is imported, buffers without memory are taken for set
        model = AutoModelForCausalLM.from_pretrained(folder, **how)
    _move(model, device, dtype)
    return model


@torch.no_grad()
def _move(model: torch.nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Move like `model.to(device, dtype)`, but copy on the CPU too: weights in a mapped file are not counted."""
    for parameter in model.parameters():
        if not hasattr(parameter, "ds_tensor"):
            parameter.data = parameter.data.to(device, dtype, copy=True)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to(device)


@contextmanager
def opened_by(opener: Callable[..., Any]) -> Iterator[None]:
    """Make transformers open safetensors with `opener` while open."""
    modeling_utils: Any = import_module("transformers.modeling_utils")
    real = modeling_utils.safe_open
    modeling_utils.safe_open = opener
    try:
        yield
    finally:
        modeling_utils.safe_open = real


def mapped_files_left_out(counter: StorageCounter) -> AbstractContextManager[None]:
    """Exclude pages of mapped files from the count while open: the kernel can reclaim them.

    The files stay mapped until then, so that WeightFiles can measure their pages.
    """
    from safetensors import safe_open

    tensors: list[torch.Tensor] = []
    return opened_by(lambda *args, **kwargs: _UncountedFile(safe_open(*args, **kwargs), counter, tensors))


class _UncountedFile:
    """A safe_open whose tensors are kept alive and not counted."""

    def __init__(self, file: Any, counter: StorageCounter, held: list[torch.Tensor]) -> None:
        self._file, self._counter, self._held = file, counter, held
        self.keys, self.metadata = file.keys, file.metadata

    def __enter__(self) -> Self:
        self._file.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*(error or (None, None, None)))

    def get_slice(self, name: str) -> LazySlice:
        """Return a slice whose tensor is created on access."""
        header = self._file.get_slice(name)
        return LazySlice(lambda: self.get_tensor(name), header.get_dtype(), header.get_shape())

    def get_tensor(self, name: str) -> torch.Tensor:
        """Return a tensor over the mapped file."""
        with self._counter.leaving_out():
            tensor: torch.Tensor = self._file.get_tensor(name)
        self._counter.leave_out(tensor)
        self._held.append(tensor)
        return tensor


@dataclass(frozen=True)
class LazySlice:
    """safetensors' PySafeSlice as far as transformers uses it: type, shape and the whole tensor."""

    make: Callable[[], torch.Tensor]
    dtype: str
    shape: list[int]

    def get_dtype(self) -> str:
        """Return the type as the header spells it."""
        return self.dtype

    def get_shape(self) -> list[int]:
        """Return the shape of the whole tensor."""
        return self.shape

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.make()[index]
