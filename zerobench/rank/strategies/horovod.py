"""Horovod: the whole model on every rank, gradients averaged by a ring all-reduce while backward runs.

Sergeev and Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow" (arXiv 1802.05799). A hook
passes each gradient to Horovod's thread as soon as it is accumulated; the thread packs gradients that are ready on all
ranks into a fusion buffer and reduces it with Gloo. The loop is that of the other torch strategies around Horovod's
DistributedOptimizer; clipping follows the all-reduce, on the averaged gradients, as under DDP.

- Weights are drawn from the same seed on every rank, so none are broadcast. Optimizer states are not broadcast either:
  `broadcast_optimizer_state` takes a step on a fresh AdamW to make them (horovod/torch/functions.py).
- That thread allocates the fusion buffer in C++, where no tensor is seen to own it: the book of torch's allocator
  recognises it by the thread's name (rank/ledger/cpu_book.py).
- Losses and the final barrier use torch's gloo group, as under every strategy.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from zerobench.common.vocabulary import Phase
from zerobench.config.trial.trial import Compression
from zerobench.rank.ledger.cpu_book import starting_horovod
from zerobench.rank.strategies.base import Phases
from zerobench.rank.strategies.torch_loop import TorchLoop

FUSION_BYTES = 128 * 2**20
"""Horovod's default HOROVOD_FUSION_THRESHOLD (horovod/common/operations.cc), set explicitly so that it is known."""


class Horovod(TorchLoop):
    """The torch loop around Horovod's DistributedOptimizer."""

    def build(self) -> None:
        """Start Horovod, build model and optimizer, and hook every parameter's gradient."""
        self._fusion_bytes = self.job.trial.bucket_bytes or FUSION_BYTES
        os.environ["HOROVOD_FUSION_THRESHOLD"] = str(self._fusion_bytes)  # Horovod reads it when it starts
        import horovod.torch as hvd

        with starting_horovod():
            hvd.init()
        super().build()
        self._size = int(hvd.size())
        self._sends_halves = self.job.trial.compression is Compression.FP16
        self._hooked: Any = hvd.DistributedOptimizer(
            self._optimizer,
            named_parameters=self.module.named_parameters(),
            compression=hvd.Compression.fp16 if self._sends_halves else hvd.Compression.none,
            backward_passes_per_step=self.job.trial.gradient_accumulation_steps,
            op=hvd.Average,
        )
        self._optimizer = self._hooked
        buffer = f"Horovod's fusion buffer, up to {self._fusion_bytes:,} bytes, is allocated by a separate thread"
        self.notes = [f"{buffer}: counted in reduce_buffers where torch's allocator is watched, otherwise not"]

    def step(self, micro_batches: Sequence[torch.Tensor], learning_rate: float, phases: Phases) -> torch.Tensor:
        """Accumulate over the micro-batches, wait for the averaged gradients, update once."""
        # A growing batch (config/trial/batch_ramp.py) changes the number of passes.
        if self._hooked.backward_passes_per_step != len(micro_batches):
            self._hooked.set_backward_passes_per_step(len(micro_batches))
        losses = [self._forward_backward(tokens, 1 / len(micro_batches), phases) for tokens in micro_batches]
        with phases.phase(Phase.BACKWARD):  # as DDP, which waits at the end of backward
            self._hooked.synchronize()
            for parameter in self._updated:
                self.job.heard("all_reduce", self._size, parameter.numel() * (2 if self._sends_halves else 4))
        with phases.phase(Phase.STEP):
            self._update(learning_rate)
        return torch.stack(losses).mean()

    def _update(self, learning_rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._clip_all()
        with self._hooked.skip_synchronize():
            self._optimizer.step()
        self._optimizer.zero_grad()  # it has no parameter set_to_none, which is torch's default

    def load(self, folder: Path) -> None:
        """Load all states on each rank; the step that creates optimizer states must not wait for an all-reduce."""
        with self._hooked.skip_synchronize():
            super().load(folder)

    def effective_config(self) -> dict[str, Any]:
        """Settings of the optimizer, and Horovod's build and settings."""
        import horovod.torch as hvd

        ours = {
            "size": self._size,
            "fusion_threshold_bytes": self._fusion_bytes,
            "backward_passes_per_step": self._hooked.backward_passes_per_step,
            "compression": self.job.trial.compression.value,
            "gloo_built": bool(hvd.gloo_built()),
            "mpi_built": bool(hvd.mpi_built()),
            "nccl_built": bool(hvd.nccl_built()),
        }
        return {**super().effective_config(), "horovod": ours}
