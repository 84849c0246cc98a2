"""torch's DistributedDataParallel: the whole model on every rank, gradients averaged bucket by bucket during backward.

Each rank is fed its own micro-batches as a DistributedSampler without shuffling deals them out (rank/training/data.py),
so all ranks together see the samples that the single process sees. Gradients are views into DDP's buckets
(`gradient_as_bucket_view`), which live from the start to the end: their bytes are counted once, as gradients, and there
are no reduce buffers beside them but what a compressing hook keeps. Between steps they are set to zero and not dropped:
dropped ones would come to life outside of the buckets when micro-batches are accumulated under `no_sync`, and be held
twice.
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
        # No broadcast of the model's buffers before each forward pass: training changes none of them. torch 2.13 has
        # renamed the switch and warns of the old name.
        new_name, old_name = "forward_sync_buffers", "broadcast_buffers"
        name = new_name if new_name in inspect.signature(DistributedDataParallel).parameters else old_name
        settings: dict[str, Any] = {"bucket_cap_mb": cap, "gradient_as_bucket_view": True, name: False}
        self._ddp = DistributedDataParallel(self.module, **settings)
        self._hook = attach(self._ddp, trial)
        compile_whole(self._ddp, trial)  # dynamo then cuts the graph where a bucket is full, so that reductions overlap
        return self._ddp

    def _accumulating(self) -> AbstractContextManager[None]:
        return self._ddp.no_sync()

    def walk(self) -> Iterable[NamedTensor]:
        """What the loop holds, the gradients in their buckets; and what a hook keeps."""
        yield from super().walk()
        for kept in self._hook.tensors():
            yield NamedTensor(kept, Category.REDUCE_BUFFERS)

    def effective_config(self) -> dict[str, Any]:
        """The optimizer's settings, and what DDP says of its buckets."""
        logged = self._ddp._get_ddp_logging_data()
        names = ("backend_name", "bucket_cap_bytes", "gradient_as_bucket_view", "bucket_sizes", "comm_hook")
        ours = {"compression": self.job.trial.compression.value, **self._hook.settings()}
        return {**super().effective_config(), "ddp": {name: logged.get(name) for name in names} | ours}
