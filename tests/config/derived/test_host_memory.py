"""The least host memory of a node, by hand: which states lie there, in how many parts, and what page-locking rounds."""

from typing import Any

import pytest

from tests.report.sample_run import model
from zerobench.config.derived.host_memory import PROCESS_BYTES, SUB_GROUP_SIZE, element_bytes, host_state_bytes
from zerobench.config.derived.machine import Accelerator
from zerobench.config.trial.trial import TrialSpec

PARAMETERS = 8_000


def asked(strategy: str, **fields: Any) -> TrialSpec:
    usual = {"model": model("tiny", 2, 128), "gpus_per_node": 4, "precision": "bf16", "optimizer": "adamw"}
    return TrialSpec.model_validate({**usual, **fields, "strategy": strategy})


def on_cpu(trial: TrialSpec) -> float:
    """Bytes a parameter of one rank."""
    whole = host_state_bytes(trial, PARAMETERS, Accelerator.CPU)
    states = whole - trial.gpus_per_node * PROCESS_BYTES
    return states / trial.gpus_per_node / PARAMETERS


@pytest.mark.parametrize(("strategy", "fields", "a_parameter"), [
    ("single", {"gpus_per_node": 1}, 2 + 2 + 12),
    ("ddp", {}, 2 + 2 + 12),
    ("zero0", {}, 2 + 2 + 12),
    ("zero1", {}, 2 + 2 + 12 / 4),
    ("zero2", {}, 2 + 2 / 4 + 12 / 4),
    ("zero3", {}, 2 / 4 + 2 / 4 + 12 / 4),
    ("zero3", {"num_nodes": 2, "gpus_per_node": 2}, 2 / 4 + 2 / 4 + 12 / 4),
    ("zero3", {"gpus_per_node": 8}, 16 / 8),
    ("zero0", {"precision": "fp32"}, 4 + 4 + 8),
    ("zero3", {"precision": "fp32"}, 16 / 4),
    ("zero1", {"optimizer": "sgd"}, 2 + 2 + 4 / 4),
    ("zero1", {"precision": "fp32", "optimizer": "sgd"}, 4 + 4),
    ("zero2", {"offload_optimizer": "cpu", "optimizer": "cpu_adam"}, 2 + 2 / 4 + 12 / 4),
    ("zero2", {"offload_optimizer": "nvme", "nvme_path": "/n", "optimizer": "cpu_adam"}, 2 + 2 / 4),
    ("zero3", {"offload_param": "nvme", "nvme_path": "/n"}, 2 / 4 + 12 / 4),
    ("zero3", {"offload_param": "cpu"}, 2 / 4 + 2 / 4 + 12 / 4),
    ("zero3", {"hpz_partition_size": 2}, 16 / 4 + 2 / 2),
    ("zero3", {"mics_shard_size": 2}, 16 / 2),
    ("fsdp", {}, 16 / 4),
    ("parameter-server", {}, 2 + 2 + 12 / 4),
    ("pipeline", {}, (2 + 2 + 12) / 4),
    ("tensor", {}, (2 + 2 + 12) / 4),
])  # fmt: skip
def test_ranks_on_cpus_hold_all_their_states_in_the_parts_of_their_stage(
    strategy: str, fields: dict[str, Any], a_parameter: float
) -> None:
    """Weights and gradients of the precision, two moments, and fp32 masters in 16 bits; what is on a drive is not."""
    assert on_cpu(asked(strategy, **fields)) == pytest.approx(a_parameter)


def test_a_node_has_the_processes_of_its_own_ranks_alone() -> None:
    for nodes, ranks in ((1, 4), (2, 4), (4, 1)):
        trial = asked("zero0", num_nodes=nodes, gpus_per_node=ranks)
        assert host_state_bytes(trial, 0, Accelerator.CPU) == ranks * 330 * 2**20
        assert host_state_bytes(trial, PARAMETERS, Accelerator.CUDA) == ranks * 330 * 2**20


def offloaded(trial: TrialSpec, num_params: int, most_rounded: int | None = None) -> int:
    """Bytes of one rank."""
    whole = host_state_bytes(trial, num_params, Accelerator.CUDA, most_rounded)
    each, rest = divmod(whole - trial.gpus_per_node * PROCESS_BYTES, trial.gpus_per_node)
    assert rest == 0
    return each


CPU_ADAM = {"offload_optimizer": "cpu", "optimizer": "cpu_adam"}
SHARE = 1000
"""Parameters of a rank: 4,000 bytes in fp32, page-locked 4,096; 2,000 in 16 bits, page-locked 2,048."""


@pytest.mark.parametrize(("strategy", "fields", "held"), [
    ("zero1", CPU_ADAM, 2 * 4096 + 2048 + 8000),
    ("zero2", CPU_ADAM, 2 * 4096 + 2048 + 8000),
    ("zero3", CPU_ADAM, 4000 + 4096 + 2048 + 8000),
    ("zero2", CPU_ADAM | {"precision": "fp32"}, 2 * 4096 + 8000),
    ("zero3", CPU_ADAM | {"precision": "fp32"}, 4000 + 4096 + 8000),
    ("zero2", CPU_ADAM | {"ds_config": {"zero_optimization.offload_optimizer.pin_memory": False}}, 16_000),
    ("zero3", CPU_ADAM | {"ds_config": {"zero_optimization.sub_group_size": 10}}, 16_000),
    ("zero2", CPU_ADAM | {"ds_config_file": "ds.json"}, 16_000),
    ("fsdp", {"offload_optimizer": "cpu", "offload_param": "cpu"}, 16_000),
    ("zero3", {"offload_param": "cpu"}, 2000),
    ("zero3", {"offload_param": "cpu", "precision": "fp32"}, 4000),
    ("zero3", CPU_ADAM | {"offload_param": "cpu"}, 4000 + 4096 + 2048 + 8000 + 2000),
    ("zero3", {"offload_param": "cpu", "hpz_partition_size": 2}, 2000 + 4000),
    ("zero2", {"offload_optimizer": "nvme", "nvme_path": "/n", "optimizer": "cpu_adam"}, 0),
    ("zero3", {}, 0),
])  # fmt: skip
def test_ranks_on_gpus_hold_on_the_host_what_is_offloaded_there(
    strategy: str, fields: dict[str, Any], held: int
) -> None:
    """Page-locked are at stages 1 and 2 weights, gradients and the copy in 16 bits, at stage 3 the gradients alone;
    moments never are.
    """
    assert offloaded(asked(strategy, **fields), 4 * SHARE) == held


def test_a_share_is_rounded_up_to_whole_parameters_and_of_mics_divided_by_its_group() -> None:
    fields = CPU_ADAM | {"ds_config": {"zero_optimization.offload_optimizer.pin_memory": False}}
    assert offloaded(asked("zero3", **fields), 4 * SHARE + 1) == 16 * (SHARE + 1)
    assert offloaded(asked("zero3", mics_shard_size=2, **fields), 2 * SHARE) == 16 * SHARE


@pytest.mark.parametrize(("most_rounded", "held"), [
    (None, 2 * 4096 + 2048), (4000, 2 * 4096 + 2048), (3999, 2 * 4000 + 2048), (1999, 2 * 4000 + 2000)
])  # fmt: skip
def test_page_locked_tensors_above_the_limit_are_not_rounded(most_rounded: int | None, held: int) -> None:
    assert offloaded(asked("zero2", **CPU_ADAM), 4 * SHARE, most_rounded) == held + 8000


@pytest.mark.parametrize(("share", "is_rounded"), [(SUB_GROUP_SIZE, True), (SUB_GROUP_SIZE + 1, False)])
def test_of_several_sub_groups_of_stage_3_nothing_is_taken_for_rounded(share: int, is_rounded: bool) -> None:
    gradients = 2**32 if is_rounded else 4 * share
    assert SUB_GROUP_SIZE == 10**9
    held = offloaded(asked("zero3", gpus_per_node=1, **CPU_ADAM), share)
    assert held == 4 * share + gradients + 2**31 + 8 * share


@pytest.mark.parametrize(("precision", "nbytes"), [("fp32", 4), ("bf16", 2), ("fp16", 2)])
def test_a_weight_has_four_bytes_in_fp32_and_else_two(precision: str, nbytes: int) -> None:
    assert element_bytes(asked("zero0", precision=precision)) == nbytes
