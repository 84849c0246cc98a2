"""Allocation sites of storages: the innermost known Python function on the stack, or the running autograd node.

A site is evidence of purpose: an allocation of `setup_buckets` in DeepSpeed's stage 1/2 optimizer is a reduce bucket.
The table below maps sites to categories; a site that is not in it proves nothing, and its bytes stay unattributed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from enum import StrEnum
from types import CodeType, FrameType

import torch

from zerobench.common.vocabulary import Category


class Origin(StrEnum):
    """Kind of code that allocated a storage, where that alone does not decide its category."""

    FORWARD = "forward"
    """The model's own forward pass, also when recomputed: an activation if kept, a temporary if not."""
    LOSS = "loss"
    """The forward pass of the loss function."""
    AUTOGRAD = "autograd"
    """A node of the backward graph: gradients of activations, unless proven otherwise."""
    BUILD = "build"
    """Construction of the model's modules."""


@dataclass(frozen=True, slots=True)
class Site:
    """An allocation site: `deepspeed/runtime/zero/stage3.py:step`, or an autograd node."""

    name: str
    proves: Category | Origin | None
    node: int | None = None
    """Sequence number of the running autograd node, for births in the backward pass."""
    on_host: bool = False
    """True if storages born here are offloaded, which a CPU run cannot tell otherwise."""
    module: str | None = None
    """Class of the model's module, or function, whose forward pass it is."""


# On CUDA the backward pass runs in a thread of its own, whose stack lacks the frames below a node.
_BACKWARD_ENTRY = "torch/autograd/graph.py:_engine_run_backward"

_STAGES_1_2 = "deepspeed/runtime/zero/stage_1_and_2.py"
_STAGE_3 = "deepspeed/runtime/zero/stage3.py"
_PARTITION = "deepspeed/runtime/zero/partition_parameters.py"

# The first row with a matching file and function prefix decides; "" matches every function. Files start at the package
# name. Sources: DeepSpeed 0.19.8 (before 0.18.3 stage 2 sets up buckets in `backward`), torch 2.13, transformers 5.23.
_ROWS: tuple[tuple[str, str, Category | Origin], ...] = (
    (_STAGES_1_2, "setup_buckets backward average_tensor allreduce reduce_", Category.REDUCE_BUFFERS),
    (_STAGES_1_2, "copy_grads_in_partition get_flat_partition _get_flat_partition_unpadded", Category.GRADIENTS),
    (_STAGES_1_2, "_build_compact_grad_partition_buffer get_all_grad_tensors", Category.GRADIENTS),
    (_STAGES_1_2, "buffer_to_accumulate_to_in_cpu step", Category.GRADIENTS),
    (_STAGES_1_2, "__init__", Category.PARAMETERS),
    (_STAGES_1_2, "", Category.TEMPORARIES),
    (_STAGE_3, "_create_fp32_partitions", Category.MASTER_WEIGHTS),
    (_STAGE_3, "_create_fp16 _reassign_or_swap_out_partitioned_parameters", Category.PARAMETERS),
    (_STAGE_3, "_create_param_groups_fp16_flat_cpu_memory _unflatten_partitioned_parameters", Category.PARAMETERS),
    (_STAGE_3, "initialize_optimizer_states _prepare_fp32_grad_for_sub_group get_flat_partition", Category.GRADIENTS),
    (_STAGE_3, "get_fp32_grad partition_grads _offload_grad_partition_at_boundary", Category.GRADIENTS),
    (_STAGE_3, "__avg_scatter __add_grad_to_ipg_bucket __reduce", Category.REDUCE_BUFFERS),
    (_STAGE_3, "", Category.TEMPORARIES),
    ("deepspeed/runtime/zero/utils.py", "defragment", Category.PARAMETERS),
    ("deepspeed/runtime/comm/coalesced_collectives.py", "", Category.REDUCE_BUFFERS),
    (_PARTITION, "_partition partition __init__ _convert_to_deepspeed_param", Category.PARAMETERS),
    (_PARTITION, "free_param", Category.TEMPORARIES),
    (_PARTITION, "wrapped_fn wrapper", Origin.BUILD),
    (_PARTITION, "", Category.GATHERED_PARAMETERS),
    ("deepspeed/runtime/zero/partitioned_param_coordinator.py", "", Category.GATHERED_PARAMETERS),
    ("deepspeed/runtime/zero/parameter_offload.py", "", Category.TEMPORARIES),
    ("deepspeed/runtime/zero/linear.py", "", Origin.FORWARD),
    ("deepspeed/runtime/zero/muon/", "", Category.TEMPORARIES),
    ("deepspeed/runtime/swap_tensor/", "", Category.STAGING),
    ("deepspeed/runtime/zenflow/", "_process_selected_fp32_groups_grad", Category.REDUCE_BUFFERS),
    ("deepspeed/runtime/zenflow/", "", Category.TEMPORARIES),
    ("deepspeed/runtime/fp16/", "initialize_optimizer_states", Category.GRADIENTS),
    ("deepspeed/runtime/fp16/", "__init__", Category.MASTER_WEIGHTS),
    ("deepspeed/runtime/fp16/", "step", Category.GRADIENTS),
    ("deepspeed/runtime/fp16/", "", Category.TEMPORARIES),
    ("deepspeed/runtime/bf16_optimizer.py", "", Category.GRADIENTS),
    ("deepspeed/runtime/utils.py", "all_gather", Category.ALL_GATHER_BUFFERS),
    ("deepspeed/runtime/utils.py", "", Category.TEMPORARIES),
    ("deepspeed/runtime/engine.py", "allreduce", Category.REDUCE_BUFFERS),
    ("deepspeed/runtime/engine.py", "_cast_module_mixed_precision", Category.PARAMETERS),
    ("deepspeed/runtime/engine.py", "", Category.TEMPORARIES),
    ("deepspeed/runtime/pipe/engine.py", "_exec_forward_pass", Origin.FORWARD),
    ("deepspeed/runtime/pipe/engine.py", "_exec_load_micro_batch", Category.INPUTS),
    ("deepspeed/runtime/pipe/engine.py", "_exec_recv", Category.PIPELINE_BUFFERS),
    ("deepspeed/runtime/pipe/engine.py", "_allocate_zeros", Category.PIPELINE_BUFFERS),
    ("deepspeed/runtime/pipe/", "", Category.TEMPORARIES),
    ("deepspeed/ops/", "", Category.TEMPORARIES),
    ("deepspeed/moe/", "__init__", Origin.BUILD),
    ("deepspeed/moe/ep_repack.py", "", Origin.BUILD),
    ("deepspeed/moe/", "", Origin.FORWARD),
    ("deepspeed/module_inject/", "forward", Origin.FORWARD),
    ("deepspeed/module_inject/", "", Category.TEMPORARIES),
    ("torch/nn/parallel/distributed.py", "_ddp_init_helper", Category.GRADIENTS),
    ("torch/nn/parallel/distributed.py", "_pre_forward", Category.GRADIENTS),
    ("torch/nn/parallel/distributed.py", "", Category.TEMPORARIES),
    ("torch/distributed/algorithms/ddp_comm_hooks/", "", Category.REDUCE_BUFFERS),
    ("torch/distributed/fsdp/_fully_shard/_fsdp_param.py", "init_all_gather_outputs", Category.GATHERED_PARAMETERS),
    ("torch/distributed/fsdp/_fully_shard/_fsdp_param.py", "reset_sharded_param", Category.PARAMETERS),
    ("torch/distributed/fsdp/_fully_shard/_fsdp_param.py", "to_accumulated_grad", Category.GRADIENTS),
    ("torch/distributed/fsdp/_fully_shard/_fsdp_param.py", "all_gather_inputs", Category.ALL_GATHER_BUFFERS),
    ("torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", "foreach_reduce", Category.REDUCE_BUFFERS),
    ("torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", "", Category.ALL_GATHER_BUFFERS),
    ("torch/distributed/fsdp/_fully_shard/_fsdp_common.py", "_cast_fp_tensor", Origin.FORWARD),
    ("torch/distributed/fsdp/", "", Category.TEMPORARIES),
    ("horovod/torch/compression.py", "decompress", Category.GRADIENTS),
    ("horovod/torch/compression.py", "compress", Category.REDUCE_BUFFERS),
    ("horovod/torch/optimizer.py", "_allreduce_grad_async", Category.GRADIENTS),
    ("horovod/torch/", "", Category.TEMPORARIES),
    (
        "zerobench/rank/strategies/compression.py",
        "one_bit_hook _mean_of_all pack_signs unpack_signs",
        Category.REDUCE_BUFFERS,
    ),
    ("zerobench/rank/strategies/parameter_server.py", "_new_gradient", Category.GRADIENTS),
    ("zerobench/rank/strategies/parameter_server.py", "_new_buffer", Category.REDUCE_BUFFERS),
    ("zerobench/rank/strategies/parameter_server.py", "__init__ tell hear send receive", Category.TEMPORARIES),
    ("zerobench/rank/strategies/rpc_", "", Category.TEMPORARIES),
    ("torch/optim/", "", Category.TEMPORARIES),
    ("zerobench/rank/optimizers/", "", Category.TEMPORARIES),
    ("torch/nn/utils/clip_grad.py", "", Category.TEMPORARIES),
    ("transformers/loss/", "", Origin.LOSS),
    ("transformers/", "__init__", Origin.BUILD),
    ("transformers/core_model_loading.py", "", Category.PARAMETERS),
    ("transformers/modeling_utils.py", "", Origin.BUILD),
    ("transformers/initialization.py", "", Origin.BUILD),
    ("transformers/modeling_rope_utils.py", "", Origin.BUILD),
    ("transformers/", "", Origin.FORWARD),
    ("zerobench/rank/worlds/simulation/attention.py", "", Origin.FORWARD),
    ("zerobench/rank/worlds/simulation/shortcuts.py", "_wait", Category.GATHERED_PARAMETERS),
    ("zerobench/rank/worlds/simulation/shortcuts.py", "_reduce_scatter_coalesced", Category.REDUCE_BUFFERS),
    ("zerobench/rank/strategies/fsdp.py", "_with_memory", Category.PARAMETERS),
    ("zerobench/rank/training/model.py", "give_memory", Category.PARAMETERS),
    ("zerobench/rank/training/loading.py", "_move", Category.PARAMETERS),
    ("zerobench/rank/strategies/tensor.py", "clip_cut_gradients", Category.TEMPORARIES),
    ("torch/distributed/pipelining/", "_make_tensor_from_meta", Category.PIPELINE_BUFFERS),
    ("torch/distributed/pipelining/", "", Category.TEMPORARIES),
    ("zerobench/rank/strategies/pipeline.py", "_one_batch", Category.INPUTS),
    ("zerobench/rank/strategies/pipeline.py", "_loss", Origin.LOSS),
    ("zerobench/rank/strategies/pipeline.py", "clip_over_stages", Category.TEMPORARIES),
    ("zerobench/rank/training/adapters.py", "__init__", Origin.BUILD),
    ("zerobench/rank/training/adapters.py", "forward", Origin.FORWARD),
    ("zerobench/rank/training/quantised.py", "__init__", Origin.BUILD),
    ("zerobench/rank/training/quantised.py", "forward", Origin.FORWARD),
    ("zerobench/rank/training/quantised.py", "", Category.TEMPORARIES),
    ("zerobench/rank/training/cross_entropy.py", "_weight_gradient", Category.GRADIENTS),
    ("zerobench/rank/training/cross_entropy.py", "_hidden_gradient", Origin.FORWARD),
    ("zerobench/rank/training/cross_entropy.py", "", Origin.LOSS),
    ("liger_kernel/", "", Origin.LOSS),
    ("zerobench/rank/training/weights.py", "", Category.TEMPORARIES),
    ("zerobench/rank/training/data.py", "", Category.INPUTS),
    ("zerobench/rank/worlds/", "micro_batches", Category.INPUTS),
    ("zerobench/rank/training/mixed_precision.py", "__init__", Category.MASTER_WEIGHTS),
    ("zerobench/rank/training/mixed_precision.py", "", Category.GRADIENTS),
)
_RULES = tuple((file, prefix, proves) for file, names, proves in _ROWS for prefix in names.split() or [""])

_HOST_SITES = ("deepspeed/runtime/swap_tensor/", "transformers/core_model_loading.py")

# Wrappers: the site is their caller.
_TRANSPARENT = (
    "deepspeed/utils/",
    "deepspeed/accelerator/",
    "deepspeed/comm/",
    # Flattens parameters at the start and gradients in the step.
    "deepspeed/runtime/zero/stage_1_and_2.py:flatten_dense_tensors_aligned",
    # Allocate buffers and cast for gathers and reductions alike: only the caller knows the purpose.
    "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:allocate",
    "torch/distributed/fsdp/_fully_shard/_fsdp_common.py:_to_dtype_if_needed",
    # A training loop, not a model.
    "transformers/trainer",
    "zerobench/rank/training/recomputation.py",
    "zerobench/rank/worlds/instant_group.py",
    "zerobench/rank/worlds/simulation/hooks.py",
    "zerobench/rank/worlds/simulation/tensors.py",
    "zerobench/rank/worlds/simulation/memo.py",
    "zerobench/rank/worlds/simulation/device.py",
    "zerobench/rank/worlds/simulation/accelerator.py",
    "zerobench/emulator/inside/kernels.py",
)

_SHORTCUTS = "zerobench/rank/worlds/simulation/shortcuts.py"
_REPLACED = {
    f"{_SHORTCUTS}:_wait": f"{_PARTITION}:wait",
    f"{_SHORTCUTS}:_reduce_scatter_coalesced": (
        "deepspeed/runtime/comm/coalesced_collectives.py:reduce_scatter_coalesced"
    ),
}
"""Functions of DeepSpeed that simulation replaces, by the names of their replacements."""

_PACKAGES = (
    "/deepspeed/",
    "/torch/optim/",
    "/torch/nn/utils/",
    "/torch/nn/parallel/",
    "/torch/distributed/algorithms/",
    "/torch/distributed/fsdp/",
    "/torch/distributed/pipelining/",
    "/horovod/torch/",
    "/transformers/",
    "/liger_kernel/",
    "/zerobench/rank/loop/",
    "/zerobench/rank/optimizers/",
    "/zerobench/rank/strategies/",
    "/zerobench/rank/training/",
    "/zerobench/rank/worlds/",
)

# The file through which torch enters the counter.
_COUNTER = "zerobench/rank/ledger/storages.py"

_UNKNOWN = Site("unknown", None)


class SiteFinder:
    """Finds the site of the current allocation; caches the verdict on each function."""

    def __init__(self) -> None:
        self._judged: dict[CodeType, Site | None] = {}

    def __call__(self) -> Site:
        """Return the site of the caller's caller: the innermost function in the table or a known package."""
        outermost = sys._getframe(1)
        frame: FrameType | None = outermost
        while frame is not None:
            outermost = frame
            site = self._judge(frame.f_code)
            if site is not None:
                return _autograd_site() if site.name == _BACKWARD_ENTRY else site
            frame = frame.f_back
        # A stack with only the counter's own Python is a thread of distributed autograd, which reports no node.
        if torch._C._current_autograd_node() is not None or outermost.f_code.co_filename.endswith(_COUNTER):
            return _autograd_site()
        return _UNKNOWN

    def _judge(self, code: CodeType) -> Site | None:
        if code not in self._judged:
            site = judge(code.co_filename, code.co_name)
            self._judged[code] = site if site is None else add_module(site, code.co_qualname)
        return self._judged[code]


def add_module(site: Site, qualified: str) -> Site:
    """Copy of `site` with the class of its method `qualified`, if the site is part of the model."""
    if site.proves not in {Origin.FORWARD, Origin.LOSS}:
        return site
    owner, _, name = qualified.rpartition(".")
    return replace(site, module=owner or name)


def judge(filename: str, function: str) -> Site | None:
    """Site of a function, or None if its package proves nothing."""
    if filename.endswith("torch/autograd/graph.py") and function == "_engine_run_backward":
        return Site(_BACKWARD_ENTRY, None)
    for package in _PACKAGES:
        start = filename.rfind(package)
        if start >= 0:
            path = filename[start + 1 :]
            name = f"{path}:{function}"
            if name.startswith(_TRANSPARENT):
                return None
            proves = _proof(path, function)
            return Site(_REPLACED.get(name, name), proves, on_host=name.startswith(_HOST_SITES))
    return None


def _proof(path: str, function: str) -> Category | Origin | None:
    return next(
        (proves for file, start, proves in _RULES if path.startswith(file) and function.startswith(start)), None
    )


def _autograd_site() -> Site:
    node = torch._C._current_autograd_node()
    if node is None:
        return Site("autograd", Origin.AUTOGRAD)
    return Site(f"autograd:{node.name()}", Origin.AUTOGRAD, node._sequence_nr())
