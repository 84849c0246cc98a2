"""How large a checkpoint is, for each strategy and precision."""

from typing import Any

import pytest

from tests.config.trial.test_checkpoint import spec
from tests.tools.known import known
from zerobench.config.derived.checkpoint_size import checkpoint_bytes, room_bytes
from zerobench.config.models.parameters import count_parameters


@pytest.mark.parametrize(
    ("strategy", "fields", "bytes_each"),
    [
        ("ddp", {"precision": "fp32"}, 12),
        ("ddp", {"precision": "bf16"}, 14),
        ("fsdp", {"precision": "bf16"}, 12),
        ("zero0", {"precision": "fp32"}, 12),
        ("zero2", {"precision": "fp32"}, 16),
        ("zero2", {"precision": "bf16"}, 14),
        ("zero3", {"precision": "bf16"}, 12),
        ("ddp", {"precision": "fp32", "optimizer": "sgd"}, 4),
        ("pipeline", {"precision": "bf16"}, 14),
        ("rpc-pipeline", {"precision": "fp32"}, 12),
        ("pipeline", {"precision": "fp32", "pipeline_schedule": "deepspeed"}, 12),
        ("pipeline", {"precision": "bf16", "pipeline_schedule": "deepspeed"}, 26),
        ("pipeline", {"precision": "fp16", "pipeline_schedule": "deepspeed"}, 14),
    ],
)
def test_a_checkpoint_has_so_many_bytes_a_parameter(strategy: str, fields: dict[str, Any], bytes_each: int) -> None:
    assert checkpoint_bytes(spec(strategy, **fields), 1000) == 1000 * bytes_each
    assert room_bytes(spec(strategy, **fields), 1000) == 2000 * bytes_each


def test_what_autotp_leaves_whole_lies_in_the_file_of_each_part_but_at_stage_3() -> None:
    cut: dict[str, Any] = {"precision": "bf16", "gpus_per_node": 4, "ds_config": {"tensor_parallel.autotp_size": 4}}
    counts = known(count_parameters(spec("zero2", **cut).model))
    whole = counts.token_embeddings + counts.norms
    assert checkpoint_bytes(spec("zero2", **cut), counts.total) == 14 * (counts.total + 3 * whole)
    assert checkpoint_bytes(spec("zero3", **cut), counts.total) == 12 * counts.total


def test_a_universal_checkpoint_takes_room_of_its_own() -> None:
    trial = spec("zero2", {"resume_world_size": 1}, precision="bf16")
    assert room_bytes(trial, 1000) == 14_000 + 14_000 + 24_000
