"""What passes between a parameter server and its workers: tokens that say how far the weights are, and tensors.

A token is one number, sent before tensors are, so that waiting for a rank is told from receiving what it sends. The
server takes the first worker's that comes, which gloo can and NCCL cannot (ProcessGroupNCCL has no recv_anysource): on
GPUs tokens have a gloo group of their own, and tensors pass between GPUs over NCCL. Tokens, eight bytes each, are not
counted as traffic.
"""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

_TOKEN_TAG = 1


class Link:
    """One side of it. `heard` is told of every tensor that is sent or received."""

    def __init__(self, backend: str, synchronize: Callable[[], None], heard: Callable[[str, int, int], object]) -> None:
        self._tokens = dist.new_group(backend="gloo") if backend == "nccl" else None
        self._synchronize = synchronize
        self._heard = heard
        self.wait_s = 0.0
        """Seconds spent waiting for tokens; whoever takes steps sets it back."""

    def tell(self, rank: int, version: int) -> None:
        """Say to `rank` that this side is done with what it had to compute, on weights of `version`."""
        self._synchronize()
        dist.send(torch.tensor([version]), rank, group=self._tokens, tag=_TOKEN_TAG)

    def hear(self, rank: int | None = None) -> tuple[int, int]:
        """Wait until `rank`, or anyone, tells: who it was, and the version."""
        token = torch.zeros(1, dtype=torch.int64)
        start = time.perf_counter()
        source = dist.recv(token, rank, group=self._tokens, tag=_TOKEN_TAG)
        self.wait_s += time.perf_counter() - start
        return source, int(token.item())

    def send(self, tensor: torch.Tensor, *ranks: int) -> None:
        """Send a tensor to all of `ranks`, and wait until it has gone."""
        under_way = [dist.isend(tensor, rank) for rank in ranks]
        for work in under_way:
            if work is not None:
                work.wait()
            self._heard("send", dist.get_world_size(), tensor.nbytes)

    def receive(self, tensor: torch.Tensor, rank: int) -> None:
        """Receive a tensor from `rank` into `tensor`."""
        dist.recv(tensor, rank)
        self._heard("recv", dist.get_world_size(), tensor.nbytes)
