"""ZeRO++ and MiCS are refused before launch where DeepSpeed would fail, ignore them or train something else."""

from typing import Any

from tests.config.machines import CPU, GPUS
from tests.config.rules.refusals import Asking
from zerobench.config.derived.sharding import nodes_of_neighbours, state_shard_size
from zerobench.config.derived.strategy import is_exact

GPU = GPUS.model_copy(update={"num_gpus": 4, "num_nodes": 4})
TWO_NODES = {"num_nodes": 2, "precision": "fp16"}
SIMULATED = {"evidence": "simulated", "prediction": {"gpu": "h200"}}


ASKING = Asking(strategy="zero3", gpus_per_node=4, precision="fp32")
trial = ASKING.trial


test_what_would_fail_or_be_ignored_is_refused_with_its_reason = ASKING.each_refused(
    (CPU, {"strategy": "zero2", "hpz_partition_size": 2}, "zeropp_needs_stage_3", "use zero3"),
    (CPU, {"strategy": "ddp", "quantized_gradients": True}, "zeropp_needs_stage_3", "quantized_gradients true"),
    (CPU, {"hpz_partition_size": 3}, "groups_not_even", "4 ranks cannot be divided into groups of 3"),
    (CPU, {"hpz_partition_size": 8}, "groups_not_even", "hpz_partition_size 8"),
    (CPU, {"mics_shard_size": 2}, "mics_needs_fsdp", "DeepSpeed has removed MiCS"),
    (CPU, {"strategy": "ddp", "mics_shard_size": 2}, "mics_needs_fsdp", "use fsdp"),
    (CPU, {"strategy": "fsdp", "mics_shard_size": 3}, "groups_not_even", "groups of 3"),
    (
        CPU,
        {"hpz_partition_size": 2, "offload_param": "nvme", "nvme_path": "/nvme"},
        "hpz_is_not_swapped",
        "use cpu or none",
    ),
    (
        CPU,
        {"hpz_partition_size": 2, "ds_config": {"tensor_parallel.autotp_size": 2}},
        "zeropp_groups_ignore_autotp",
        "different parts of the model",
    ),
    (CPU, {"quantized_weights": True}, "quantizer_needs_gpu", "needs GPUs"),
    (
        GPU.model_copy(update={"missing_kernels": ("fused_adam",)}),
        {"quantized_weights": True},
        "quantizer_needs_gpu",
        "(nvcc) is missing",
    ),
    (
        CPU,
        {"quantized_weights": True, "num_nodes": 16, "gpus_per_node": 8, **SIMULATED},
        "quantized_parts_not_even",
        "part of a norm of 384 elements is 3",
    ),
    (GPU, {"quantized_gradients": True}, "quantized_gradients_need_nodes", "silently does not quantize"),
    (
        GPU,
        {"quantized_gradients": True, **TWO_NODES, "precision": "bf16"},
        "quantized_gradients_need_fp16",
        "gradients sent as bf16",
    ),
    (
        CPU,
        {"quantized_weights": True, **SIMULATED, "evidence": "formula"},
        "zeropp_beyond_formula",
        "use simulated",
    ),
    (
        CPU,
        {"hpz_partition_size": 2, "ds_config": {"zero_optimization.zero_hpz_partition_size": 4}},
        "ds_config_contradicts",
        "make them equal",
    ),
    (
        CPU,
        {"ds_config": {"zero_optimization.zero_quantized_weights": True}},
        "ds_config_contradicts",
        "the trial's quantized_weights is False",
    ),
)


test_what_runs_is_not_refused = ASKING.each_allowed(
    (CPU, {"hpz_partition_size": 2}),
    (CPU, {"hpz_partition_size": 4}),
    (CPU, {"hpz_partition_size": 2, "offload_param": "cpu"}),
    (CPU, {"strategy": "fsdp", "mics_shard_size": 2}),
    (GPU, {"quantized_weights": True}),
    (GPU, {"quantized_gradients": True, **TWO_NODES}),
    (
        GPU,
        {
            "quantized_gradients": True,
            **TWO_NODES,
            "precision": "bf16",
            "ds_config": {"communication_data_type": "fp16"},
        },
    ),
    (CPU, {"quantized_weights": True, **SIMULATED}),
    (CPU, {"hpz_partition_size": 2, **SIMULATED, "evidence": "formula"}),
)


def test_quantized_trials_are_shown_unjudged_and_second_copies_are_judged():
    assert is_exact(trial(hpz_partition_size=2))
    assert is_exact(trial(strategy="fsdp", mics_shard_size=2))
    assert not is_exact(trial(quantized_weights=True))
    assert not is_exact(trial(quantized_gradients=True))


def test_states_are_divided_by_the_group_and_a_large_group_lies_on_several_nodes():
    assert state_shard_size(trial(strategy="fsdp", mics_shard_size=2)) == 2
    assert state_shard_size(trial(hpz_partition_size=2)) == 4
    assert [nodes_of_neighbours(trial(num_nodes=4), size) for size in (1, 4, 5, 8)] == [1, 1, 2, 2]


def test_a_sweep_lists_group_sizes_and_drops_them_for_the_reference(plan: Any):
    axes = {"strategy": ["single", "zero3"], "world_size": 4, "hpz_partition_size": [None, 2]}
    found = [planned.trial for planned in plan({**axes, "quantized_weights": False})]
    assert [(one.strategy, one.hpz_partition_size) for one in found] == [
        ("single", None),
        ("zero3", None),
        ("zero3", 2),
    ]
