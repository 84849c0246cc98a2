"""1-bit gradients with error feedback, as a communication hook of DistributedDataParallel that runs on any backend.

Each rank sends the sign of every element and one scale, the mean absolute value, and keeps what that left out to add
it to its next gradient: Seide et al. 2014 ("1-bit stochastic gradient descent", Interspeech), with the scale of
Karimireddy et al. 2019 (arXiv 1901.09847, algorithm 2). DeepSpeed's own 1-bit optimizers (OneBitAdam, OneBitLamb,
ZeroOneAdam) would be the other way, but were removed in 0.19.7; what they compress is Adam's momentum after a long
warm-up, this compresses gradients and goes with any optimizer.

All ranks gather all signs: a reduction of signs has no sum. So n ranks receive n bits an element, against some
64 bits that an all-reduce in fp32 moves, which pays up to some sixty ranks.
"""

from typing import get_type_hints

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

_BITS = 8


class OneBit:
    """What the hook keeps: steps seen, and the error of each bucket."""

    def __init__(self, first_compressed_step: int) -> None:
        self.first_compressed_step = first_compressed_step
        self.errors: dict[int, torch.Tensor] = {}
        self._step = 0

    def begins(self, bucket: GradBucket) -> bool:
        """Whether the step that this bucket is of is compressed; counts a step at its last bucket."""
        compressed = self._step >= self.first_compressed_step
        self._step += bucket.is_last()
        return compressed


def one_bit_hook(state: OneBit, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Replace the bucket's gradients by the mean over all ranks of their signs times their scales."""
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
    """One bit for each element, uint8 of an eighth of the elements: 1 where it is not negative."""
    positive = values >= 0
    padded = torch.nn.functional.pad(positive, (0, -values.numel() % _BITS)).view(-1, _BITS)
    packed = torch.zeros(padded.shape[0], dtype=torch.uint8, device=values.device)
    for bit in range(_BITS):
        packed |= padded[:, bit].to(torch.uint8) << bit
    return packed


def unpack_signs(packed: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """+1 or -1 for each element of `like`, of its type."""
    signs = like.new_empty((packed.numel(), _BITS))
    for bit in range(_BITS):
        signs[:, bit] = (packed >> bit) & 1
    return signs.view(-1)[: like.numel()].mul_(2).sub_(1)
