"""Communication hooks for `ddp` that compress buckets of gradients, with the tensors that they keep between steps.

fp16, bf16 and PowerSGD are torch's own hooks (torch/distributed/algorithms/ddp_comm_hooks).

The 1-bit hook is ours, for any backend: 1-bit gradients with error feedback. Each rank sends the sign of every element
and one scale, the mean absolute value, and adds the residual to its next gradient: Seide et al. 2014 ("1-bit stochastic
gradient descent", Interspeech), with the scale of Karimireddy et al. 2019 (arXiv 1901.09847, algorithm 2). DeepSpeed's
1-bit optimizers (OneBitAdam, OneBitLamb, ZeroOneAdam) were removed in 0.19.7; they compress Adam's momentum after a
long warm-up, this hook compresses gradients for any optimizer. Signs cannot be reduced, so every rank gathers all of
them: n ranks receive n bits an element, against some 64 bits of an fp32 all-reduce, which pays up to some sixty ranks.
"""

from collections.abc import Iterable
from typing import Any, get_type_hints

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from zerobench.config.trial.trial import Compression, TrialSpec

_BITS = 8


class OneBit:
    """State of the 1-bit hook: number of steps, and the error of each bucket."""

    def __init__(self, first_compressed_step: int) -> None:
        self.first_compressed_step = first_compressed_step
        self.errors: dict[int, torch.Tensor] = {}
        self._step = 0

    def begins(self, bucket: GradBucket) -> bool:
        """True if the step of this bucket is compressed; counts a step at its last bucket."""
        compressed = self._step >= self.first_compressed_step
        self._step += bucket.is_last()
        return compressed


def one_bit_hook(state: OneBit, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Replace the bucket's gradients with the mean over all ranks of their signs times their scales."""
    gradient = bucket.buffer()
    if not state.begins(bucket):
        dist.all_reduce(gradient.div_(dist.get_world_size()))
    else:
        error = state.errors.setdefault(bucket.index(), torch.zeros_like(gradient))
        gradient.add_(error)
        scale = gradient.abs().mean(dtype=torch.float32).reshape(1)
        signs = pack_signs(gradient)
        error.copy_(gradient).sub_(unpack_signs(signs, gradient) * scale.to(gradient.dtype))
        _mean_of_all(gradient, signs, scale)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(gradient)
    return done


one_bit_hook.__annotations__ = get_type_hints(one_bit_hook)  # torch compares the types themselves, not their names


def _mean_of_all(gradient: torch.Tensor, signs: torch.Tensor, scale: torch.Tensor) -> None:
    """Write the mean over all ranks into `gradient`."""
    ranks = dist.get_world_size()
    all_signs = [torch.empty_like(signs) for _ in range(ranks)]
    all_scales = [torch.empty_like(scale) for _ in range(ranks)]
    dist.all_gather(all_signs, signs)
    dist.all_gather(all_scales, scale)
    gradient.zero_()
    for rank_signs, its_scale in zip(all_signs, all_scales, strict=True):
        gradient.add_(unpack_signs(rank_signs, gradient) * (its_scale / ranks).to(gradient.dtype))


def pack_signs(values: torch.Tensor) -> torch.Tensor:
    """Pack one bit an element into uint8, an eighth of the elements: 1 if it is not negative."""
    positive = values >= 0
    padded = torch.nn.functional.pad(positive, (0, -values.numel() % _BITS)).view(-1, _BITS)
    packed = torch.zeros(padded.shape[0], dtype=torch.uint8, device=values.device)
    for bit in range(_BITS):
        packed |= padded[:, bit].to(torch.uint8) << bit
    return packed


def unpack_signs(packed: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Unpack to +1 or -1 for each element of `like`, in its type."""
    signs = like.new_empty((packed.numel(), _BITS))
    for bit in range(_BITS):
        signs[:, bit] = (packed >> bit) & 1
    return signs.view(-1)[: like.numel()].mul_(2).sub_(1)


POWERSGD_RANK = 4
"""Rank of the factors (torch's default is 1); 4 is the largest in the paper's experiments on language models."""

FIRST_COMPRESSED_STEP = 2
"""The minimum for torch with error feedback, since DDP rebuilds its buckets after the first step. torch's default of
1000 would never be reached in a trial."""


class Hook:
    """An attached hook; the base class keeps no tensors."""

    def tensors(self) -> Iterable[torch.Tensor]:
        """Tensors that the hook keeps between steps."""
        return ()

    def settings(self) -> dict[str, Any]:
        """Settings of the hook."""
        return {}


class _PowerSgd(Hook):
    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=POWERSGD_RANK,
            start_powerSGD_iter=FIRST_COMPRESSED_STEP,
        )
        ddp.register_comm_hook(self._state, powerSGD_hook.powerSGD_hook)

    def tensors(self) -> Iterable[torch.Tensor]:
        """Errors to feed back, and the factors from which the next step starts."""
        state = self._state
        for tensors_by_bucket in (state.error_dict, state.p_memory_dict, state.q_memory_dict):
            yield from tensors_by_bucket.values()

    def settings(self) -> dict[str, Any]:
        """Rank of the factors, and the first compressed step."""
        state = self._state
        return {
            "matrix_approximation_rank": state.matrix_approximation_rank,
            "start_powerSGD_iter": state.start_powerSGD_iter,
        }


class _OneBit(Hook):
    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._state = OneBit(FIRST_COMPRESSED_STEP)
        ddp.register_comm_hook(self._state, one_bit_hook)

    def tensors(self) -> Iterable[torch.Tensor]:
        """Errors to feed back."""
        return self._state.errors.values()

    def settings(self) -> dict[str, Any]:
        """First compressed step."""
        return {"first_compressed_step": self._state.first_compressed_step}


def attach(ddp: DistributedDataParallel, trial: TrialSpec) -> Hook:
    """Attach the trial's hook to `ddp`; without compression DDP's own all-reduce stays."""
    if trial.compression is Compression.POWERSGD:
        return _PowerSgd(ddp)
    if trial.compression is Compression.ONEBIT:
        return _OneBit(ddp)
    if trial.compression is Compression.FP16:
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if trial.compression is Compression.BF16:
        ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return Hook()
