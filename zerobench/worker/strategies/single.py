"""A plain torch loop in one process, without DeepSpeed: what every other strategy is held against."""

from __future__ import annotations

from zerobench.worker.strategies.torch_loop import TorchLoop


class Single(TorchLoop):
    """The loop itself."""
