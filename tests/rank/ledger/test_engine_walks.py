"""The tensors that DeepSpeed's own engines hold after a backward pass are walked, each under its name and place."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.rank.conftest import in_fork  # noqa: F401 -- pytest finds it here
from zerobench.common.vocabulary import Category, Place

Names = set[tuple[Category, Place | None]]

CPU: dict[str, Any] = {"device": "cpu"}
TWICE = {"gradient_accumulation_steps": 2}
FP32_SUMS = {"data_types": {"grad_accum_dtype": "fp32"}}
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "stage 1": ({"stage": 1}, {}),
    "stage 1 between passes": ({"stage": 1}, TWICE),
    "stage 1 with fp32 sums": ({"stage": 1}, FP32_SUMS),
    "stage 2": ({"stage": 2}, {}),
    "stage 2 offloaded": ({"stage": 2, "offload_optimizer": CPU}, {}),
    "stage 2 offloaded between passes": ({"stage": 2, "offload_optimizer": CPU}, TWICE),
    "stage 3": ({"stage": 3}, {}),
    "stage 3 offloaded": ({"stage": 3, "offload_optimizer": CPU, "offload_param": CPU}, {}),
    "stage 0": ({"stage": 0}, {}),
    "stage 0 with a fused optimizer": ({"stage": 0}, {"optimizer": {"type": "Adam", "params": {"lr": 1e-3}}}),
    "nvme": ({"stage": 3}, {}),
}
"""By name, what zero_optimization and the rest of the configuration say."""

HELD: tuple[tuple[str, str, Category, Place | None], ...] = (
    ("stage 1", "bit16_groups_flat", Category.PARAMETERS, None),
    ("stage 1", "single_partition_of_fp32_groups", Category.MASTER_WEIGHTS, None),
    ("stage 1", "averaged_gradients", Category.GRADIENTS, None),
    ("stage 1 between passes", "ipg_buckets", Category.REDUCE_BUFFERS, None),
    ("stage 1 with fp32 sums", "bf16_groups_flat", Category.PARAMETERS, None),
    ("stage 1 with fp32 sums", "fp32_groups_gradients_flat", Category.GRADIENTS, None),
    ("stage 1 with fp32 sums", "fp32_groups_flat_partition", Category.MASTER_WEIGHTS, None),
    ("stage 2", "averaged_gradients", Category.GRADIENTS, None),
    ("stage 2 offloaded", "bit16_groups_flat", Category.PARAMETERS, None),
    ("stage 2 offloaded", "single_partition_of_fp32_groups", Category.MASTER_WEIGHTS, Place.HOST),
    ("stage 2 offloaded", "param_buffer_of_bit16_for_cpu_offload_groups", Category.STAGING, Place.HOST),
    ("stage 2 offloaded", "temp_grad_buffer_for_cpu_offload", Category.STAGING, Place.HOST),
    ("stage 2 offloaded", "temp_grad_buffer_for_gpu_offload", Category.REDUCE_BUFFERS, None),
    ("stage 2 offloaded between passes", "accumulated_grads_in_cpu", Category.GRADIENTS, Place.HOST),
    ("stage 3", "lp_param_buffer", Category.PARAMETERS, None),
    ("stage 3", "fp16_partitioned_groups_flat", Category.PARAMETERS, None),
    ("stage 3", "fp32_partitioned_groups_flat", Category.MASTER_WEIGHTS, None),
    ("stage 3", "grad_partitions_flat_buffer", Category.GRADIENTS, None),
    ("stage 3", "ipg_buckets", Category.REDUCE_BUFFERS, None),
    ("stage 3 offloaded", "param_groups_fp16_flat_cpu_memory", Category.PARAMETERS, Place.HOST),
    ("stage 3 offloaded", "fp32_partitioned_groups_flat", Category.MASTER_WEIGHTS, Place.HOST),
    ("stage 3 offloaded", "grad_partitions_flat_buffer", Category.GRADIENTS, Place.HOST),
    ("stage 0", "fp32_groups", Category.MASTER_WEIGHTS, None),
    ("stage 0 with a fused optimizer", "fp16_groups_flat", Category.PARAMETERS, None),
    ("stage 0 with a fused optimizer", "fp32_groups_flat", Category.MASTER_WEIGHTS, None),
    ("nvme", "optimizer_swapper.swap_buffer_manager.all_buffers", Category.PINNED_BUFFERS, Place.HOST),
    ("nvme", "module.0.weight.nvme_swapper.buffers", Category.PINNED_BUFFERS, Place.HOST),
    ("nvme", "module.0.weight.nvme_swapper.partitioned_swap_buffer", Category.PINNED_BUFFERS, Place.HOST),
)
"""In a setting, an attribute of DeepSpeed's optimizer, and what its tensors are."""


CLASSES = {
    "stage 1": ("DeepSpeedZeroOptimizer", "AdamW"),
    "stage 1 with fp32 sums": ("BF16_Optimizer", "AdamW"),
    "stage 3": ("DeepSpeedZeroOptimizer_Stage3", "AdamW"),
    "stage 0": ("FP16_UnfusedOptimizer", "AdamW"),
    "stage 0 with a fused optimizer": ("FP16_Optimizer", "FusedAdam"),
}
"""What DeepSpeed wraps the optimizer in, and the optimizer inside."""


def walked(drive: str) -> tuple[dict[tuple[str, str], list[Names]], dict[str, tuple[str, str]]]:
    """Rank 0 of 4: by setting and attribute, the names that each of its tensors got; and the classes that it says."""
    import socket

    import deepspeed
    import torch

    from zerobench.rank.ledger.engine_config import engine_config
    from zerobench.rank.ledger.engine_tensors import walk_deepspeed
    from zerobench.rank.worlds.solo import join_alone
    from zerobench.records.progress import Rank

    join_alone(Rank(0, 0, 4, socket.gethostname(), 0), True, lambda *_call: None, "cpu")
    swap = {"device": "nvme", "nvme_path": drive}
    swapped = {"offload_optimizer": swap, "offload_param": {**swap, "max_in_cpu": 0, "buffer_size": 2**20}}
    found, classes = {}, {}
    for name, (zero, rest) in SETTINGS.items():
        # What is swapped has a MiB at least.
        width = 2048 if name == "nvme" else 64
        model = torch.nn.Sequential(torch.nn.Linear(width, 1024 if name == "nvme" else 32), torch.nn.Tanh())
        asked = {"reduce_bucket_size": 1000, "sub_group_size": 1000, **zero, **(swapped if name == "nvme" else {})}
        config = {"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True}, "zero_optimization": asked}
        config |= {"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}, "zero_force_ds_cpu_optimizer": False}
        engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config | rest)
        engine.backward(engine(torch.ones(4, width, dtype=torch.bfloat16)).float().sum())
        told = engine_config(engine)
        classes[name] = told["engine_optimizer"], told["optimizer"]
        names: dict[int, Names] = {}
        for item in walk_deepspeed(engine):
            names.setdefault(item.tensor.untyped_storage()._cdata, set()).add((item.category, item.place))
        for setting, attribute, _, _ in HELD:
            if setting == name:
                held = list(_tensors(_attribute(engine.optimizer, attribute)))
                found[name, attribute] = [names.get(one.untyped_storage()._cdata, set()) for one in held]
    return found, classes


def _attribute(owner: Any, path: str) -> Any:
    for part in path.split("."):
        owner = getattr(owner, part)
    return owner


def _tensors(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)
    else:
        yield from _tensors([value.buffer])


@pytest.fixture(scope="module")
def names(in_fork: Callable[..., Any], kernels: None, tmp_path_factory: pytest.TempPathFactory) -> Any:  # noqa: F811
    return in_fork(walked, str(tmp_path_factory.mktemp("drive")))


@pytest.mark.parametrize(("setting", "attribute", "category", "place"), HELD)
def test_what_deepspeed_holds_is_walked_as_what_it_is(names, setting, attribute, category, place):
    found = names[0][setting, attribute]
    assert found
    assert all((category, place) in one for one in found), found


@pytest.mark.parametrize("setting", CLASSES)
def test_the_engine_says_which_optimizer_it_wraps_in_what(names, setting):
    assert names[1][setting] == CLASSES[setting]
