"""torch's DistributedDataParallel: the whole model on every rank, gradients averaged bucket by bucket during backward.

Each rank gets its own micro-batches from a DistributedSampler without shuffling (rank/training/data.py), so all ranks
together see the samples of the single process. Gradients are views into DDP's buckets (`gradient_as_bucket_view`),
which live as long as the model: their bytes count once, as gradients, and the only reduce buffers are those of a
compressing hook. Between steps they are set to zero, not dropped: dropped ones would be created outside of the buckets
when micro-batches are accumulated under `no_sync`, and be held twice.
"""

import inspect
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from zerobench.common.vocabulary import Category
from zerobench.rank.ledger.engine_tensors import NamedTensor
from zerobench.rank.strategies.compression import attach
from zerobench.rank.strategies.torch_loop import TorchLoop
from zerobench.rank.training.compilation import compile_whole

_MIB = 2**20


class Ddp(TorchLoop):
    """The torch loop around a DistributedDataParallel."""

    _keeps_gradients = True

    def _wrap(self) -> Callable[..., Any]:
        trial = self.job.trial
        cap: Any = None if trial.bucket_bytes is None else trial.bucket_bytes / _MIB  # torch takes it times 2**20
        # No broadcast of the model's buffers before each forward pass: training never changes them. torch 2.13 renamed
        # the option and warns about the old name.
        new_name, old_name = "forward_sync_buffers", "broadcast_buffers"
        name = new_name if new_name in inspect.signature(DistributedDataParallel).parameters else old_name
        settings: dict[str, Any] = {"bucket_cap_mb": cap, "gradient_as_bucket_view": True, name: False}
        self._ddp = DistributedDataParallel(self.module, **settings)
        self._hook = attach(self._ddp, trial)
        compile_whole(self._ddp, trial)  # dynamo then splits the graph at full buckets, so that reductions overlap
        return self._ddp

    def _accumulating(self) -> AbstractContextManager[None]:
        return self._ddp.no_sync()

    def walk(self) -> Iterable[NamedTensor]:
        """Tensors of the loop, with gradients in their buckets, and of the hook."""
        yield from super().walk()
        for tensor in self._hook.tensors():
            yield NamedTensor(tensor, Category.REDUCE_BUFFERS)

    def effective_config(self) -> dict[str, Any]:
        """Settings of the optimizer, and of DDP's buckets."""
        logged = self._ddp._get_ddp_logging_data()
        names = ("backend_name", "bucket_cap_bytes", "gradient_as_bucket_view", "bucket_sizes", "comm_hook")
        ours = {"compression": self.job.trial.compression.value, **self._hook.settings()}
        return {**super().effective_config(), "ddp": {name: logged.get(name) for name in names} | ours}
