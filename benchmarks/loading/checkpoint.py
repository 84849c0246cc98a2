"""Checkpoints of a model's shape, of random values: safetensors in shards with their index, as the hub holds them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

INDEX = "model.safetensors.index.json"


def write_checkpoint(
    folder: Path, hf_config: Mapping[str, Any], shard_bytes: int, dtype: torch.dtype = torch.bfloat16
) -> int:
    """Write config.json, shards of at most `shard_bytes` (or of one tensor) and their index; the weights' bytes.

    No more than a shard is in memory.
    """
    config = AutoConfig.for_model(**hf_config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    config.architectures, config.dtype = [type(model).__name__], dtype
    config.save_pretrained(folder)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}  # a tied head is no file's
    shards = list(_shards(shapes, shard_bytes, dtype))
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    generator = torch.Generator().manual_seed(0)
    for name, shard in zip(names, shards, strict=True):
        values = {key: torch.empty(shapes[key]).normal_(0, 0.02, generator=generator).to(dtype) for key in shard}
        save_file(values, folder / name, metadata={"format": "pt"})
    total: int = sum(shape.numel() for shape in shapes.values()) * dtype.itemsize
    weight_map = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
    return total


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
