"""Communication hooks for `ddp`: what becomes of a bucket of gradients on its way, and what each keeps for that.

fp16, bf16 and PowerSGD are torch's own hooks (torch/distributed/algorithms/ddp_comm_hooks). The 1-bit hook is ours
(one_bit.py).
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from zerobench.config.trial.trial import Compression, TrialSpec
from zerobench.rank.strategies.one_bit import OneBit, one_bit_hook

POWERSGD_RANK = 4
"""Rank of the factors (torch's default is 1); 4 is the largest of the paper's own experiments on language models."""

FIRST_COMPRESSED_STEP = 2
"""The least that torch allows with error feedback: DDP rebuilds its buckets after the first step. Its own default of
1000 would never be reached in a trial."""


class Hook:
    """A hook as attached; by itself the plain one: nothing kept."""

    def tensors(self) -> Iterable[torch.Tensor]:
        """What the hook keeps from step to step."""
        return ()

    def settings(self) -> dict[str, Any]:
        """What it was set up with."""
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
        """Errors fed back, and the factors that the next step starts from."""
        state = self._state
        for kept in (state.error_dict, state.p_memory_dict, state.q_memory_dict):
            yield from kept.values()

    def settings(self) -> dict[str, Any]:
        """The factors' rank and the first step that is compressed."""
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
        """Errors fed back."""
        return self._state.errors.values()

    def settings(self) -> dict[str, Any]:
        """The first step that is compressed."""
        return {"first_compressed_step": self._state.first_compressed_step}


def attach(ddp: DistributedDataParallel, trial: TrialSpec) -> Hook:
    """Give `ddp` the hook that the trial asks for; without compression DDP's own all-reduce stays."""
    if trial.compression is Compression.POWERSGD:
        return _PowerSgd(ddp)
    if trial.compression is Compression.ONEBIT:
        return _OneBit(ddp)
    if trial.compression is Compression.FP16:
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if trial.compression is Compression.BF16:
        ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return Hook()
