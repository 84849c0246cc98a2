"""Checkpoints of random values are those that transformers reads, and the table says bytes a parameter."""

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from benchmarks.loading.measure import Figure, table
from zerobench.rank.training.loading import INDEX, write_checkpoint

SHAPE = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 512}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": True}


def test_shards_are_no_larger_than_asked_and_transformers_finds_every_weight_in_them(tmp_path: Path) -> None:
    written = write_checkpoint(tmp_path, SHAPE, torch.bfloat16, lambda _, shape: torch.ones(shape), 100_000)
    shards = list(tmp_path.glob("*.safetensors"))
    assert len(shards) > 1
    assert all(shard.stat().st_size < 110_000 for shard in shards)
    index = json.loads((tmp_path / INDEX).read_text())
    assert (index["metadata"]["total_size"], set(index["weight_map"].values())) == (
        written,
        {one.name for one in shards},
    )
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto", output_loading_info=True)
    assert sum(parameter.nbytes for parameter in model.parameters()) == written
    assert all(parameter.eq(1).all() for parameter in model.parameters())
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]


def test_the_table_is_of_bytes_a_parameter() -> None:
    figure = Figure("a way", 2, 100, 800, 400, 1600, 1200, 200)
    assert table([figure])[-1] == "| a way | 8.00 | 4.00 | 16.00 | 12.00 | 2.00 |"
