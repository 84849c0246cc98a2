"""Checkpoints of a model's shape, as safetensors reads them: how they are cut, what they hold, and what is moved."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rank.real_ranks import LLAMA
from zerobench.rank.training.loading import INDEX, LazySlice, _move, _shards, write_checkpoint

SIZES = {"a": 3, "b": 5, "c": 2, "d": 10, "e": 1}
"""Tensors of so many elements."""


@pytest.mark.parametrize(("most_bytes", "dtype", "expected"), [
    (4 * 8, torch.float32, ["ab", "c", "d", "e"]),
    (4 * 8 - 1, torch.float32, ["a", "bc", "d", "e"]),
    (4 * 10, torch.float32, ["abc", "d", "e"]),
    (2 * 10, torch.bfloat16, ["abc", "d", "e"]),
    (2 * 11, torch.float16, ["abc", "de"]),
    (4 * 21, torch.float32, ["abcde"]),
    (1, torch.float32, ["a", "b", "c", "d", "e"]),
])  # fmt: skip
def test_a_shard_is_filled_to_the_byte_and_a_larger_tensor_is_one_by_itself(
    most_bytes: int, dtype: torch.dtype, expected: list[str]
) -> None:
    shapes = {name: torch.Size((size,)) for name, size in SIZES.items()}
    assert ["".join(shard) for shard in _shards(shapes, most_bytes, dtype)] == expected


def values(name: str, shape: torch.Size) -> torch.Tensor:
    return torch.full(shape, float(len(name)))


@pytest.mark.parametrize(("dtype", "fill"), [
    (torch.float32, values), (torch.bfloat16, values), (torch.float16, None)
])  # fmt: skip
def test_what_is_written_is_what_safetensors_reads(
    tmp_path: Path, dtype: torch.dtype, fill: Callable[[str, torch.Size], torch.Tensor] | None
) -> None:
    """Without values the files are as large, take no room, and read as zeros."""
    from safetensors import safe_open

    total = write_checkpoint(tmp_path, LLAMA, dtype, fill, shard_bytes=50_000)
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"] == {"total_size": total}
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    count = len(files)
    assert count > 1
    assert files == [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    read: dict[str, torch.Tensor] = {}
    for name in files:
        with safe_open(tmp_path / name, "pt") as file:
            assert set(file.keys()) == {key for key, where in index["weight_map"].items() if where == name}
            read |= {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 -- it is no mapping
        assert (tmp_path / name).read_bytes()[:8] != bytes(8)
        assert int.from_bytes((tmp_path / name).read_bytes()[:8], "little") % 8 == 0
    assert sum(tensor.nbytes for tensor in read.values()) == total
    assert {tensor.dtype for tensor in read.values()} == {dtype}
    for key, tensor in read.items():
        expected = torch.zeros_like(tensor) if fill is None else fill(key, tensor.shape).to(dtype)
        assert torch.equal(tensor, expected)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["dtype"] == str(dtype).removeprefix("torch.")
    assert config["architectures"] == ["LlamaForCausalLM"]


def test_a_weight_that_is_in_place_already_is_copied_all_the_same() -> None:
    """Where it lies in a mapped file it is nobody's memory."""
    module = torch.nn.Linear(3, 2)
    module.register_buffer("table", torch.ones(2))
    module.register_buffer("nothing", None)
    before = {name: (parameter, parameter.data_ptr()) for name, parameter in module.named_parameters()}
    _move(module, torch.device("cpu"), torch.float32)
    for name, parameter in module.named_parameters():
        assert parameter is before[name][0]
        assert parameter.data_ptr() != before[name][1]
    assert module.nothing is None


def test_weights_are_cast_buffers_keep_their_type_and_what_is_partitioned_stays() -> None:
    module = torch.nn.Linear(3, 2)
    module.register_buffer("table", torch.ones(2))
    partitioned: Any = module.bias
    partitioned.ds_tensor = torch.ones(1)
    kept = module.bias.data_ptr()
    _move(module, torch.device("cpu"), torch.bfloat16)
    assert (module.weight.dtype, module.bias.dtype) == (torch.bfloat16, torch.float32)
    assert module.bias.data_ptr() == kept
    assert module.table.dtype is torch.float32


def test_a_slice_is_made_when_it_is_asked_for() -> None:
    made: list[int] = []

    def make() -> torch.Tensor:
        made.append(1)
        return torch.arange(6).view(2, 3)

    one = LazySlice(make, "I64", [2, 3])
    assert (one.get_dtype(), one.get_shape(), made) == ("I64", [2, 3], [])
    assert torch.equal(one[1], torch.tensor([3, 4, 5]))
    assert made == [1]
