"""torch's FSDP2: `fully_shard` for each block and for the rest of the model, gathered for use one by one.

The model is created without memory and each rank keeps its part of weights that are drawn one parameter at a time, so
that no rank ever holds it whole. A 16-bit model is kept in fp32 parts, which the optimizer updates, and gathered in 16
bits (MixedPrecisionPolicy); gradients are reduced in the same 16 bits, as under ZeRO. fp32 adapters of a 16-bit model
are gathered as they are, in one message with it, and their gradients are reduced in fp32. Gradients are reduced with
every micro-batch, as at stages 2 and 3: otherwise (`set_requires_gradient_sync`) every rank would hold whole gradients
between micro-batches. CPU offload covers parameters, gradients and optimizer states together (CPUOffloadPolicy), and
the update runs on the CPU.

With `mics_shard_size` the model is sharded over groups of that many neighbouring ranks, which are replicas of each
other (torch's HSDP, the partitioning of MiCS: Zhang et al., arXiv 2205.00119, section 3.1). Gradients are reduced
within the group with every micro-batch and between the groups with the last one (section 3.3, 2-hop gradient
synchronization).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.utils._python_dispatch import _disable_current_modes

from zerobench.common.vocabulary import Place
from zerobench.config.derived.sharding import state_shard_size
from zerobench.config.trial.trial import Offload
from zerobench.rank.ledger.engine_tensors import NamedTensor
from zerobench.rank.ledger.fsdp_tensors import walk_fsdp
from zerobench.rank.strategies.torch_loop import TorchLoop
from zerobench.rank.training.compilation import blocks, compile_blocks
from zerobench.rank.training.mixed_precision import gradients_of
from zerobench.rank.training.model import DTYPES


class Fsdp(TorchLoop):
    """The torch loop over a model under fully_shard."""

    _keeps_masters = False
    _is_divided = True

    def _build_module(self) -> torch.nn.Module:
        model = self.job.shape_model(on_meta=True)
        device, trial = self.job.device, self.job.trial
        compile_blocks(model, trial)
        offload = CPUOffloadPolicy(pin_memory=device.is_cuda) if self._offloads else OffloadPolicy()
        policy = MixedPrecisionPolicy(param_dtype=DTYPES[trial.precision] if trial.trains_in_16_bits else None)
        settings: dict[str, Any] = {"mesh": self._mesh(), "mp_policy": policy, "offload_policy": offload}
        for block in blocks(model):
            fully_shard(block, reshard_after_forward=trial.reshard_after_forward, **settings)
        # None lets torch keep the root gathered, since backward needs the head first.
        fully_shard(model, reshard_after_forward=None if trial.reshard_after_forward else False, **settings)
        where = torch.device("cpu") if self._offloads else device.torch_device
        model._apply(partial(_with_memory, device=where))
        self.job.fill_weights(model)
        return model

    def _mesh(self) -> DeviceMesh:
        """Mesh of all ranks in one dimension, or of groups of neighbours in two.

        A mesh reads its ranks from a tensor, which must have values in every world.
        """
        trial, device = self.job.trial, self.job.device.torch_device.type
        groups = trial.world_size // state_shard_size(trial)
        with _disable_current_modes():
            if groups == 1:
                return init_device_mesh(device, (trial.world_size,))
            names = ("replicate", "shard")
            return init_device_mesh(device, (groups, trial.world_size // groups), mesh_dim_names=names)

    @contextmanager
    def _accumulating(self) -> Iterator[None]:
        """Leave the all-reduce between replica groups to the last micro-batch of the step."""
        root: Any = self.module  # fully_shard gives it these methods
        root.set_requires_all_reduce(False)
        yield
        root.set_requires_all_reduce(True)

    def _clip(self, parameters: Sequence[torch.Tensor], largest: float) -> torch.Tensor:
        """Clip by the whole norm, reduced once: torch's clip_grad_norm_ returns only this rank's part."""
        norm: Any = torch.nn.utils.get_total_norm(gradients_of(parameters))
        whole: torch.Tensor = norm.full_tensor()
        torch.nn.utils.clip_grads_with_norm_(parameters, largest, whole)
        return whole

    @property
    def _offloads(self) -> bool:
        return self.job.trial.offload_param is Offload.CPU

    def walk(self) -> Iterable[NamedTensor]:
        """All tensors of FSDP2 and the optimizer."""
        masters = self.job.trial.trains_in_16_bits
        place = Place.HOST if self._offloads else None
        return walk_fsdp(self.module, self._optimizer, are_masters=masters, place=place)

    def effective_config(self) -> dict[str, Any]:
        """Settings of the optimizer and of FSDP2."""
        state = self.module._get_fsdp_state()  # type: ignore[operator] # torch leaves it untyped
        fsdp = {
            "reshard_after_forward": self.job.trial.reshard_after_forward,
            "mesh": list(state._fsdp_param_group.mesh_info.mesh.shape) if state._fsdp_param_group else None,
            "mp_policy": repr(state._mp_policy),
            "offload": "cpu" if self._offloads else "none",
            "blocks": sum(1 for _ in blocks(self.module)),
        }
        return {**super().effective_config(), "fsdp": fsdp}


def _with_memory(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return `tensor`, or an empty one like it on `device` if it has no memory."""
    return torch.empty_like(tensor, device=device) if tensor.is_meta else tensor
