"""A parameter server: rank 0 holds weights and optimizer states, the others send gradients and receive weights.

After Li et al., "Scaling Distributed Machine Learning with the Parameter Server" (OSDI 2014, algorithm 1): each worker
computes a gradient on its share of the data, pushes it, and pulls the updated weights. Here one server holds the whole
model; the paper's servers hold a range of its keys each.

It uses send and receive of torch.distributed. torch.distributed.rpc is in maintenance mode, and creates received
tensors on threads of its own, out of sight of the ledger's counter (a dispatch mode covers one thread). Tensors are
sent one by one, because a server that receives one flat copy of all gradients holds them twice: in addition to weights,
optimizer states and the gradients of one update it needs only a buffer for the largest tensor, and only with several
workers.

- sync: the server waits for all workers, averages their gradients, clips the norm, updates once and sends the weights
  to all. Equal to one process except for the order of additions.
- async: it applies each gradient, the mean over that worker's share, on arrival, clipped and at the learning rate of
  the server's step, as Downpour SGD does (Dean et al., NIPS 2012). A step of the trial is then one update per worker.
  The staleness of a gradient is the number of updates since the weights that it was computed with.

Weights are drawn from the same seed on every rank, so the first pull is skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from zerobench.common.vocabulary import Phase
from zerobench.config.derived.parameter_server import bytes_per_step
from zerobench.config.derived.roles import Role, num_servers, num_workers, role_of
from zerobench.config.trial.trial import Consistency
from zerobench.rank.ledger.engine_tensors import NamedTensor, walk_module
from zerobench.rank.strategies.base import Job, Phases
from zerobench.rank.strategies.checkpoint_states import load_whole, model_states
from zerobench.rank.strategies.torch_loop import TorchLoop, loss_scale

_TOKEN_TAG = 1


class Link:
    """One end of the connection between server and workers: tokens with the version of the weights, and tensors.

    A token is one number, sent before tensors, so that waiting for a rank is separate from receiving its tensors. The
    server takes the first worker's token that arrives, which gloo supports and NCCL does not (ProcessGroupNCCL has no
    recv_anysource): on GPUs tokens have a gloo group of their own, and tensors pass between GPUs over NCCL. Tokens,
    eight bytes each, do not count as traffic. `heard` is called with every tensor that is sent or received.
    """

    def __init__(self, backend: str, synchronize: Callable[[], None], heard: Callable[[str, int, int], object]) -> None:
        self._tokens = dist.new_group(backend="gloo") if backend == "nccl" else None
        self._synchronize = synchronize
        self._heard = heard
        self.wait_s = 0.0
        """Seconds spent waiting for tokens; reset at each step."""

    def tell(self, rank: int, version: int) -> None:
        """Tell `rank` that this side has finished its computation, on weights of `version`."""
        self._synchronize()
        dist.send(torch.tensor([version]), rank, group=self._tokens, tag=_TOKEN_TAG)

    def hear(self, rank: int | None = None) -> tuple[int, int]:
        """Wait for a token of `rank`, None for any rank; returns its sender and the version."""
        token = torch.zeros(1, dtype=torch.int64)
        start = time.perf_counter()
        source = dist.recv(token, rank, group=self._tokens, tag=_TOKEN_TAG)
        self.wait_s += time.perf_counter() - start
        return source, int(token.item())

    def send(self, tensor: torch.Tensor, *ranks: int) -> None:
        """Send a tensor to all of `ranks`, and wait until it has gone."""
        for work in [dist.isend(tensor, rank) for rank in ranks]:
            if work is not None:
                work.wait()
            self._heard("send", dist.get_world_size(), tensor.nbytes)

    def receive(self, tensor: torch.Tensor, rank: int) -> None:
        """Receive a tensor from `rank` into `tensor`."""
        dist.recv(tensor, rank)
        self._heard("recv", dist.get_world_size(), tensor.nbytes)


_SERVER = 0


def server_or_worker(job: Job) -> Server | Worker:
    """Make the side of this rank."""
    return Server(job) if role_of(job.trial, dist.get_rank()) is Role.SERVER else Worker(job)


class _Side(TorchLoop):
    """Common part of both sides."""

    def build(self) -> None:
        """Build the states of this side, and the link."""
        self._build_states()
        job = self.job
        self._link = Link(job.device.backend, job.device.synchronize, job.heard)
        self._sent = [p for p in self.module.parameters() if p.requires_grad]
        self._is_sync = job.trial.consistency is Consistency.SYNC

    def _build_states(self) -> None:
        super().build()

    def effective_config(self) -> dict[str, Any]:
        """Settings of this side, and the bytes of the paper's push and pull."""
        trial, role = self.job.trial, role_of(self.job.trial, dist.get_rank())
        weights = sum(p.nbytes for p in self._sent)
        server = {
            "role": role.value,
            "consistency": trial.consistency.value,
            "workers": num_workers(trial),
            "transport": f"send and recv over {self.job.device.backend}, tensor by tensor",
            "bytes_per_step_by_formula": bytes_per_step(weights, num_workers(trial), role),
        }
        return {**self._own_config(), "parameter_server": server}

    def _own_config(self) -> dict[str, Any]:
        return super().effective_config()


class Server(_Side):
    """Weights and optimizer states; no data."""

    def build(self) -> None:
        """Build the model, its optimizer, and the link."""
        super().build()
        self._workers = range(num_servers(self.job.trial), self.job.trial.world_size)
        self._version = 0
        self.staleness_steps = self._staleness = list[int]()

    def step(self, micro_batches: Sequence[torch.Tensor], learning_rate: float, phases: Phases) -> torch.Tensor:
        """Apply one gradient of each worker, together or one by one. Returns zero: there is no data and no loss."""
        del micro_batches
        self._link.wait_s = 0.0
        for _ in range(1 if self._is_sync else len(self._workers)):
            with phases.phase(Phase.BACKWARD):
                served = self._wait_for_workers()
                self._receive_gradients(served)
            with phases.phase(Phase.STEP):
                self._update(learning_rate)
                self._version += 1
                self._send_weights(served)
        self.wait_s = self._link.wait_s
        return torch.zeros((), device=self.job.device.torch_device)

    def _wait_for_workers(self) -> list[int]:
        """Wait until all workers have gradients (sync), or the next one has (async)."""
        messages = [self._link.hear(worker) for worker in self._workers] if self._is_sync else [self._link.hear()]
        self._staleness += [self._version - version for _, version in messages]
        served = [worker for worker, _ in messages]
        for worker in served:
            self._link.tell(worker, self._version)
        return served

    @torch.no_grad()
    def _receive_gradients(self, workers: Sequence[int]) -> None:
        """Sum the gradients of `workers`, which have divided them by the number of workers."""
        first, *others = workers
        for parameter in self._sent:
            parameter.grad = _new_gradient(parameter)
            self._link.receive(parameter.grad, first)
            if others:
                self._add(parameter.grad, others)

    def _add(self, gradient: torch.Tensor, workers: Sequence[int]) -> None:
        """Add the gradients of `workers`, through a buffer that is freed before the next tensor arrives."""
        buffer = _new_buffer(gradient)
        for worker in workers:
            self._link.receive(buffer, worker)
            gradient.add_(buffer)

    @torch.no_grad()
    def _send_weights(self, workers: Sequence[int]) -> None:
        for worker in workers:
            self._link.tell(worker, self._version)
        for parameter in self._sent:
            self._link.send(parameter.data, *workers)


def _new_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Make a zero gradient, since nothing is received if the workers are absent (solo)."""
    return torch.zeros_like(parameter)


def _new_buffer(gradient: torch.Tensor) -> torch.Tensor:
    """Make a buffer that receives the gradients of all workers but the first, one at a time."""
    return torch.zeros_like(gradient)


class Worker(_Side):
    """The model and its gradients; no optimizer."""

    def build(self) -> None:
        """Build the model and the link."""
        super().build()
        self._version = 0
        self._divided_by = num_workers(self.job.trial) if self._is_sync else 1  # the server sums without dividing

    def _build_states(self) -> None:
        self.module = self._build_module()
        self.module.train()
        self._forward = self._wrap()
        self._scale = loss_scale(self.job.trial)

    def step(self, micro_batches: Sequence[torch.Tensor], learning_rate: float, phases: Phases) -> torch.Tensor:
        """Accumulate over the worker's share of the global batch, push the gradient, pull weights."""
        del learning_rate  # the server's
        self._link.wait_s = 0.0
        share = self._scale / (len(micro_batches) * self._divided_by)
        losses = [self._forward_backward(tokens, share, phases) for tokens in micro_batches]
        with phases.phase(Phase.STEP):
            self._push()
            self._pull()
        self.wait_s = self._link.wait_s
        return torch.stack(losses).mean()

    def _push(self) -> None:
        """Send the gradients, and free each as soon as it is sent."""
        self._link.tell(_SERVER, self._version)
        self._link.hear(_SERVER)
        for parameter, gradient in self._gradients():
            self._link.send(gradient, _SERVER)
            parameter.grad = None

    def _gradients(self) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
        for parameter in self._sent:
            if parameter.grad is None:
                raise RuntimeError("a parameter has no gradient; parameter-server needs one for each")
            yield parameter, parameter.grad.contiguous()

    @torch.no_grad()
    def _pull(self) -> None:
        _, self._version = self._link.hear(_SERVER)
        for parameter in self._sent:
            self._link.receive(parameter.data, _SERVER)

    def learning_rate(self) -> float | None:
        """None: only the server has a learning rate."""
        return None

    def save(self, folder: Path) -> None:
        """Do nothing: the server saves everything."""

    def load(self, folder: Path) -> None:
        """Load the weights that the server saved."""
        load_whole(model_states(self.module), folder)

    def walk(self) -> Iterable[NamedTensor]:
        """The model and its gradients."""
        return walk_module(self.module)

    def _own_config(self) -> dict[str, Any]:
        return {"loss_scale": self._scale}
