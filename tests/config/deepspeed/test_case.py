"""What a DeepSpeed configuration comes to on so many ranks."""

from dataclasses import replace

import pytest

from zerobench.config.deepspeed.case import Case
from zerobench.config.trial.optimizers import OPTIMIZERS, Optimizer
from zerobench.config.trial.trial import Offload


@pytest.mark.parametrize(
    ("zero", "expected"),
    [
        ({"stage": 3}, True),
        ({"stage": 3, "memory_efficient_linear": False}, False),
        ({"stage": 2, "memory_efficient_linear": True}, False),
        ({}, False),
    ],
    ids=str,
)
def test_deepspeeds_linear_layer_stands_at_stage_3_alone_and_unless_it_is_turned_off(
    zero: dict[str, object], *, expected: bool
) -> None:
    assert Case({"zero_optimization": zero}, world_size=2, num_params=10).replaces_linear is expected


@pytest.mark.parametrize(
    ("zero", "kept"),
    [
        ({"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.75}}, 2),
        ({"stage": 3, "offload_optimizer": {"device": "cpu"}}, 0),
        ({"stage": 3}, 0),
        ({"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.75}}, 0),
    ],
    ids=str,
)
def test_what_the_ratio_leaves_of_sub_groups_stays_on_the_device_at_stage_3(zero: dict[str, object], kept: int) -> None:
    assert Case({"zero_optimization": zero}, world_size=2, num_params=10).kept_sub_groups(8) == kept


BARE = {
    "trained": 10,
    "stage": 0,
    "overlaps": False,
    "element": 4,
    "gradient_element": 4,
    "bucket_elements": 500_000_000,
    "bucket_bytes": 2_000_000_000,
    "runs_bf16_optimizer": False,
    "offload_optimizer": Offload.NONE,
    "offload_param": Offload.NONE,
    "micro_steps": 1,
}
BF16 = {"bf16": {"enabled": True}}
IN_HALF = {"element": 2, "gradient_element": 2, "bucket_elements": 7, "bucket_bytes": 14}
OFFLOADED = {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "nvme"}}
ON_THE_HOST = {"offload_optimizer": Offload.CPU}


def zero(stage: int, **keys: object) -> dict[str, object]:
    return {"zero_optimization": {"stage": stage, "reduce_bucket_size": 7} | keys}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {}),
        ({"gradient_accumulation_steps": 3}, {"micro_steps": 3}),
        (BF16 | zero(0, **OFFLOADED), IN_HALF),
        (BF16 | zero(2, overlap_comm=True, **OFFLOADED), {"stage": 2, "overlaps": True} | IN_HALF | ON_THE_HOST),
        (
            BF16 | zero(3, **OFFLOADED),
            {"stage": 3, "overlaps": True, "offload_param": Offload.NVME} | IN_HALF | ON_THE_HOST,
        ),
        (
            BF16 | zero(1) | {"data_types": {"grad_accum_dtype": "fp32"}},
            {"stage": 1, "runs_bf16_optimizer": True} | IN_HALF | {"gradient_element": 4, "bucket_bytes": 28},
        ),
        (
            BF16 | zero(3, overlap_comm=False) | {"communication_data_type": "fp32"},
            {"stage": 3} | IN_HALF | {"bucket_bytes": 28},
        ),
    ],
    ids=str,
)
def test_a_configuration_says_its_stage_the_bytes_of_an_element_and_of_a_bucket_and_where_states_lie(
    config: dict[str, object], expected: dict[str, object]
) -> None:
    case = Case(config, world_size=2, num_params=10)
    assert {name: getattr(case, name) for name in BARE} == BARE | expected
    assert replace(case, num_trained=4).trained == 4


def test_the_optimizer_is_the_one_that_deepspeed_is_handed_else_that_of_the_configuration() -> None:
    made = Case({"optimizer": {"type": "SGD"}}, world_size=2, num_params=10)
    assert made.optimizer is OPTIMIZERS[Optimizer.SGD]
    assert replace(made, handed=Optimizer.LION).optimizer is OPTIMIZERS[Optimizer.LION]


@pytest.mark.parametrize(
    ("nbytes", "names"), [(4, ("fp32", "float32", "float")), (2, ("fp16", "float16", "half", "bf16", "bfloat16"))]
)
def test_each_of_deepspeeds_names_of_a_data_type_has_its_bytes(nbytes: int, names: tuple[str, ...]) -> None:
    cases = [Case({"data_types": {"grad_accum_dtype": name}}, world_size=2, num_params=10) for name in names]
    assert {case.gradient_element for case in cases} == {nbytes}
