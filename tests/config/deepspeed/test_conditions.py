"""What is so in a trial, and under which conditions on it DeepSpeed reads a key."""

from typing import Any

import pytest

from tests.config.deepspeed.key_samples import LLAMA
from zerobench.config.deepspeed.conditions import holds, look_of, words
from zerobench.config.trial.trial import TrialSpec

PLAIN = {
    "stage": 2,
    "pipeline": False,
    "offload_optimizer": "none",
    "offload_param": "none",
    "swaps": False,
    "optimizer": "adamw",
    "precision": "bf16",
    "compile": "none",
    "checkpoint": False,
    "autotp": False,
    "gradient_clipping": 1.0,
    "bf16_optimizer": False,
}
SWAPPED = {"offload_optimizer": "nvme", "offload_param": "cpu", "nvme_path": "/nvme"}


@pytest.mark.parametrize(
    ("strategy", "fields", "expected"),
    [
        ("zero2", {}, {}),
        ("zero0", {"precision": "fp32", "optimizer": "sgd"}, {"stage": 0, "precision": "fp32", "optimizer": "sgd"}),
        ("zero3", SWAPPED, {"stage": 3, "offload_optimizer": "nvme", "offload_param": "cpu", "swaps": True}),
        ("zero3", {"offload_param": "nvme"}, {"stage": 3, "offload_param": "nvme", "swaps": True}),
        ("zero2", {"checkpoint": {"every_steps": 2}}, {"checkpoint": True}),
        ("zero1", {"ds_config": {"tensor_parallel.autotp_size": 2}}, {"stage": 1, "autotp": True}),
        ("pipeline", {"pipeline_schedule": "deepspeed"}, {"stage": 0, "pipeline": True, "bf16_optimizer": True}),
    ],
    ids=str,
)
def test_the_facts_that_conditions_name_are_those_of_the_trial(
    strategy: str, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    look = look_of(TrialSpec(model=LLAMA, strategy=strategy, gpus_per_node=2, **fields), {})
    assert {name: look(name) for name in PLAIN} == PLAIN | expected


def test_a_key_has_the_value_that_is_given_else_deepspeeds_default() -> None:
    stage1 = TrialSpec(model=LLAMA, strategy="zero1")
    bucket = "zero_optimization.reduce_bucket_size"
    assert look_of(stage1, {bucket: 7})(bucket) == 7
    assert look_of(stage1, {bucket: "auto"})(bucket) == look_of(stage1, {})(bucket) == 500_000_000
    assert look_of(stage1, {"its.own": "auto"})("its.own") == "auto"
    assert look_of(stage1, {"data_types.grad_accum_dtype": "fp32"})("bf16_optimizer")


def test_any_of_the_conditions_is_enough_and_all_of_one_must_hold() -> None:
    look = look_of(TrialSpec(model=LLAMA, strategy="zero1"), {})
    assert holds((), look)
    assert holds(({"stage": (3,)}, {"stage": (1, 2), "pipeline": (False,)}), look)
    assert not holds(({"stage": (1, 2), "pipeline": (True,)},), look)


def test_conditions_are_said_in_words() -> None:
    said = words(({"stage": (1, 2), "autotp": (True,)}, {"swaps": (False,)}, {"fp16.enabled": (True,)}))
    assert said == ("at ZeRO stage 1 or 2 with AutoTP, or where nothing is swapped to NVMe, or with fp16.enabled true")
