"""A trial whose swapped parameters would be left without a buffer is refused, with the setting that mends it."""

from typing import Any

import pytest

from tests.config.machines import CPU
from tests.tools.known import known
from zerobench.config.deepspeed import build_ds_config
from zerobench.config.models.presets import resolve_model
from zerobench.config.rules.situation import Situation
from zerobench.config.rules.swap_rules import SWAP_RULES, held_buffers
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec

REUSED = "zero_optimization.stage3_max_reuse_distance"
COUNT = "zero_optimization.offload_param.buffer_count"


def trial(model: str = "llama-1b", **fields: Any) -> TrialSpec:
    offload = {"offload_param": "nvme", "nvme_path": "/nvme"} | fields.pop("offload", {})
    spec: ModelSpec = resolve_model(model)
    return TrialSpec.model_validate(
        {"model": spec, "strategy": "zero3", "gpus_per_node": 8, "evidence": "simulated", **offload, **fields}
    )


def why(**fields: Any) -> str | None:
    return SWAP_RULES["swap_buffers_run_out"](Situation(trial(**fields), CPU, None))


def test_what_nobody_says_otherwise_keeps_nothing_gathered():
    assert why() is None
    assert build_ds_config(trial())["zero_optimization"]["stage3_max_reuse_distance"] == 0


def test_at_distance_0_not_even_the_head_stays_gathered_which_is_used_again_at_once():
    held = [held_buffers(asked, build_ds_config(asked)) for asked in (trial(ds_config={REUSED: n}) for n in (0, 1))]
    assert held == [0, 1]


def test_deepspeed_s_own_distance_is_refused_with_what_mends_it():
    reason = known(why(ds_config={REUSED: 10**9}))
    needed = int(reason.rpartition(" ")[2])
    assert needed == 20  # the head, three whole blocks of five such tensors, and four of a fourth
    assert "stage3_max_reuse_distance 0" in reason
    assert why(ds_config={REUSED: 10**9, COUNT: needed}) is None
    assert why(ds_config={REUSED: 10**9, COUNT: needed - 1}) is not None


@pytest.mark.parametrize("fields", [{"offload": {"offload_param": "cpu"}}, {"model": "llama-20m"}])
def test_what_is_not_swapped_needs_no_buffer(fields: dict[str, Any]):
    assert why(ds_config={REUSED: 10**9}, **fields) is None


def test_with_recomputation_more_is_used_between_and_fewer_are_held():
    plain, recomputed = (
        held_buffers(asked, build_ds_config(asked))
        for asked in (
            trial(ds_config={REUSED: 10**9}, activation_checkpointing=checkpoints) for checkpoints in (False, True)
        )
    )
    assert (plain, recomputed) == (20, 5)


PIPELINED = "zero_optimization.offload_optimizer"


def why_optimizer(world_size: int = 2, **keys: Any) -> str | None:
    config = {f"{PIPELINED}.{key}": value for key, value in keys.items()} | {"zero_optimization.sub_group_size": 10**8}
    offload = {"offload_optimizer": "nvme", "nvme_path": "/nvme", "optimizer": "cpu_adam"}
    asked = trial(offload=offload, gpus_per_node=world_size, ds_config=config)
    return SWAP_RULES["optimizer_buffers_run_out"](Situation(asked, CPU, None))


@pytest.mark.parametrize(
    ("keys", "needed"),
    [
        ({}, 4),
        ({"pipeline_read": True}, 8),
        ({"pipeline_write": True}, 8),
        ({"pipeline_read": True, "pipeline_write": True}, 12),
    ],
)
def test_each_sub_group_under_way_has_buffers_of_its_own(keys: dict[str, Any], needed: int):
    assert (why_optimizer(**keys) is None) == (needed == 4)
    assert why_optimizer(**keys, buffer_count=needed) is None
    if needed > 4:
        reason = known(why_optimizer(**keys, buffer_count=needed - 1))
        assert reason.endswith(f"use offload_optimizer.buffer_count {needed}")


def test_a_rank_of_few_sub_groups_has_no_more_of_them_under_way():
    both = {"pipeline_read": True, "pipeline_write": True}
    one_group = trial(
        offload={"offload_optimizer": "nvme", "nvme_path": "/nvme", "optimizer": "cpu_adam"},
        gpus_per_node=2,
        ds_config={f"{PIPELINED}.{key}": value for key, value in both.items()},
    )
    assert SWAP_RULES["optimizer_buffers_run_out"](Situation(one_group, CPU, None)) is None
