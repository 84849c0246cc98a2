"""Checkpoints of a model's shape, as the hub holds them: written here, and read by transformers' `from_pretrained`.

transformers reads them as it reads a user's: from the mapped file, in the type that is asked for, under zero.Init where
it knows of a stage 3 (integrations/deepspeed.py).
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

SHARD_BYTES = 5 * 10**9
"""Of a file, or one tensor, as most checkpoints of the hub are cut."""
INDEX = "model.safetensors.index.json"
TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
"""As a header writes them."""

Value = Callable[[str, torch.Size], torch.Tensor]
"""Name and shape of a parameter to its values."""


def write_checkpoint(
    folder: Path, hf_config: Mapping[str, Any], dtype: torch.dtype, value: Value | None, shard_bytes: int = SHARD_BYTES
) -> int:
    """Write config.json, shards of at most `shard_bytes` (or of one tensor) and their index; the weights' bytes.

    No more than one tensor is in memory. Without `value` files have holes where values would be, and take no room.
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
    """The format: eight bytes with the header's length, the header, all tensors one behind the other."""
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
def told_of_stage_3(ds_config: Mapping[str, Any]) -> Iterator[None]:
    """Let transformers know, while open, of the configuration whose stage 3 partitions what it loads."""
    from transformers.integrations import HfDeepSpeedConfig, unset_hf_deepspeed_config

    known = HfDeepSpeedConfig(dict(ds_config))  # transformers keeps a weak reference
    try:
        yield
    finally:
        del known
        unset_hf_deepspeed_config()


def read_checkpoint(folder: Path, trial: TrialSpec, dtype: torch.dtype, attention: str, device: torch.device) -> Any:
    """The model of `folder`: read on the host, then moved to the device and into the trial's type, weight by weight.

    What transformers partitioned while it read lies on the device already.
    """
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    # Its threads would allocate where no ledger looks; each holds one tensor at a time.
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
    read_as = torch.float32 if trial.weights is Weights.LOADED_FP32 else dtype
    how: dict[str, Any] = {"dtype": read_as, "attn_implementation": attention, "use_cache": False}
    with no_init_weights():  # else where torch's compiler is imported, buffers without memory are taken for set
        model = AutoModelForCausalLM.from_pretrained(folder, **how)
    _move(model, device, dtype)
    return model


@torch.no_grad()
def _move(model: torch.nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """As `model.to(device, dtype)` does, and on the CPU too: a weight that lies in a mapped file is nobody's memory."""
    for parameter in model.parameters():
        if not hasattr(parameter, "ds_tensor"):
            parameter.data = parameter.data.to(device, dtype, copy=True)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to(device)


@contextmanager
def opened_by(opener: Callable[..., Any]) -> Iterator[None]:
    """Let transformers open safetensors by `opener` while open."""
    modeling_utils: Any = import_module("transformers.modeling_utils")
    real = modeling_utils.safe_open
    modeling_utils.safe_open = opener
    try:
        yield
    finally:
        modeling_utils.safe_open = real


def mapped_files_left_out(counter: StorageCounter) -> AbstractContextManager[None]:
    """Count no pages of mapped files while open: they are nobody's memory.

    Files stay mapped until then, so that WeightFiles can say how many pages there were.
    """
    from safetensors import safe_open

    held: list[torch.Tensor] = []
    return opened_by(lambda *args, **kwargs: _UncountedFile(safe_open(*args, **kwargs), counter, held))


class _UncountedFile:
    """A safe_open whose tensors are not counted, and held."""

    def __init__(self, file: Any, counter: StorageCounter, held: list[torch.Tensor]) -> None:
        self._file, self._counter, self._held = file, counter, held
        self.keys, self.metadata = file.keys, file.metadata

    def __enter__(self) -> Self:
        self._file.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*(error or (None, None, None)))

    def get_slice(self, name: str) -> LazySlice:
        """A tensor, not made yet."""
        header = self._file.get_slice(name)
        return LazySlice(lambda: self.get_tensor(name), header.get_dtype(), header.get_shape())

    def get_tensor(self, name: str) -> torch.Tensor:
        """A tensor over the mapped file."""
        with self._counter.leaving_out():
            made: torch.Tensor = self._file.get_tensor(name)
        self._counter.leave_out(made)
        self._held.append(made)
        return made


@dataclass(frozen=True)
class LazySlice:
    """safetensors' PySafeSlice, of which transformers asks type, shape and all of it."""

    make: Callable[[], torch.Tensor]
    dtype: str
    shape: list[int]

    def get_dtype(self) -> str:
        """As the header writes it."""
        return self.dtype

    def get_shape(self) -> list[int]:
        """Of the whole tensor."""
        return self.shape

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.make()[index]
