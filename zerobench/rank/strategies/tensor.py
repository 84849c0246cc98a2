"""torch's tensor parallelism: every block of the model is split across all ranks, which train the same samples
together.

The plan is Megatron-LM's (Shoeybi et al., arXiv 1909.08053, section 3) with DTensor. The first matrices of attention
and MLP are split by columns, which divides heads and inner width, the last ones by rows; activations between blocks are
whole on every rank. The input of attention and MLP becomes a DTensor once (`PrepareModuleInput`) and not in each
projection, so that its gradient is reduced once: two all-reduces a block forward and two backward, as in the paper.

The head is split by vocabulary, and the loss is computed on the split logits (`loss_parallel`), the largest activation,
which is never whole on any rank. The embedding is split too, but by columns: DTensor supports the lookup in an
embedding split by vocabulary, as in Megatron, but not its backward pass, which would give every rank the gradient of
the whole table. By columns, table, gradient and optimizer states are divided alike, for one all-gather in forward.
Norms and their gradients are whole on every rank.

The model is created without memory and each rank keeps its part of weights that are drawn one parameter at a time.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils._python_dispatch import _disable_current_modes

from zerobench.rank.strategies.base import Phases
from zerobench.rank.strategies.torch_loop import TorchLoop
from zerobench.rank.training.compilation import blocks
from zerobench.rank.training.mixed_precision import gradients_of
from zerobench.rank.training.model import DTYPES, give_memory

_WHOLE = Replicate()

BLOCK_PLAN: dict[str, ParallelStyle] = {
    "self_attn": PrepareModuleInput(
        input_kwarg_layouts={"hidden_states": _WHOLE}, desired_input_kwarg_layouts={"hidden_states": _WHOLE}
    ),
    "self_attn.q_proj": ColwiseParallel(),
    "self_attn.k_proj": ColwiseParallel(),
    "self_attn.v_proj": ColwiseParallel(),
    "self_attn.o_proj": RowwiseParallel(),
    "mlp": PrepareModuleInput(input_layouts=(_WHOLE,), desired_input_layouts=(_WHOLE,)),
    "mlp.gate_proj": ColwiseParallel(),
    "mlp.up_proj": ColwiseParallel(),
    "mlp.down_proj": RowwiseParallel(),
}
OUTER_PLAN: dict[str, ParallelStyle] = {
    "model.embed_tokens": ColwiseParallel(output_layouts=_WHOLE),
    "lm_head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
}


class Tensor(TorchLoop):
    """The torch loop over a model whose matrices are split across the ranks."""

    _is_divided = True

    def _build_module(self) -> torch.nn.Module:
        model = self.job.shape_model(on_meta=True)
        # A mesh reads its ranks from a tensor, which must have values in every world.
        with _disable_current_modes():
            mesh = init_device_mesh(self.job.device.torch_device.type, (self.job.trial.world_size,))
        for block in blocks(model):
            parallelize_module(block, mesh, BLOCK_PLAN)
        parallelize_module(model, mesh, OUTER_PLAN)
        give_memory(model, self.job.device.torch_device, DTYPES[self.job.trial.precision])
        self.job.fill_weights(model)
        return model

    def step(self, micro_batches: Sequence[torch.Tensor], learning_rate: float, phases: Phases) -> torch.Tensor:
        """Take one step of the loop. The loss is the same on every rank."""
        with loss_parallel():
            loss: Any = super().step(micro_batches, learning_rate, phases)
            return loss.full_tensor()  # type: ignore[no-any-return] # torch leaves it untyped

    def _parameter_groups(self, parameters: Sequence[torch.Tensor]) -> list[dict[str, Any]]:
        """Separate split and whole parameters: a fused or for-each update cannot mix DTensors and tensors."""
        cut = [p for p in parameters if isinstance(p, DTensor)]
        whole = [p for p in parameters if not isinstance(p, DTensor)]
        return [{"params": group} for group in (cut, whole) if group]

    def _clip(self, parameters: Sequence[torch.Tensor], largest: float) -> torch.Tensor:
        return clip_cut_gradients(parameters, largest)

    def effective_config(self) -> dict[str, Any]:
        """Settings of the optimizer, and how the model is split."""
        cut = {name: str(p.placements[0]) for name, p in self.module.named_parameters() if isinstance(p, DTensor)}
        plan = {name.removeprefix("model.layers.0."): how for name, how in cut.items() if ".layers." not in name}
        plan |= {name.removeprefix("model.layers.0."): how for name, how in cut.items() if ".layers.0." in name}
        return {**super().effective_config(), "tensor_parallel": {"degree": self.job.trial.world_size, "plan": plan}}


@torch.no_grad()
def clip_cut_gradients(parameters: Iterable[torch.Tensor], largest: float) -> torch.Tensor:
    """Scale all gradients so that their global norm is at most `largest`; returns the norm before.

    The squares of the parts are summed over the ranks in one all-reduce; a gradient that is whole on every rank counts
    once (Megatron-LM, megatron/core/optimizer/clip_grads.py). torch's own clip_grad_norm_ cannot mix DTensors and
    tensors, and reduces the norm of every DTensor separately.
    """
    gradients: list[Any] = gradients_of(parameters)
    parts = [g.to_local() for g in gradients if is_cut(g)]
    wholes = [g.to_local() if isinstance(g, DTensor) else g for g in gradients if not is_cut(g)]
    square = torch.nn.utils.get_total_norm(parts).float() ** 2
    dist.all_reduce(square)
    norm = (square + torch.nn.utils.get_total_norm(wholes).float() ** 2).sqrt()
    scale = torch.clamp(largest / (norm + 1e-6), max=1.0)
    for gradient in (*parts, *wholes):
        gradient.mul_(scale.to(gradient.dtype))
    return norm


def is_cut(tensor: torch.Tensor) -> bool:
    """True if each rank holds only a part of `tensor`."""
    return isinstance(tensor, DTensor) and tensor.placements[0].is_shard()
