"""A parameter server: rank 0 holds weights and optimizer states, the others send gradients and get weights.

After Li et al., "Scaling Distributed Machine Learning with the Parameter Server" (OSDI 2014, algorithm 1): each worker
computes a gradient on its share of the data, pushes it, and pulls the weights that the server made with it. Here one
server holds all of the model; the paper's servers hold a range of its keys each.

Over send and receive of torch.distributed, and not over torch.distributed.rpc: that is in maintenance mode, and what it
receives comes to life on threads of its own, where the ledger's count (a dispatch mode, which is one thread's) sees
nothing of it. Tensor by tensor, because a server that takes one flat copy of all gradients holds them twice: beside
weights, optimizer states and the gradients of one update it needs a buffer as large as the largest tensor, and that
only from two workers on.

- sync: the server waits for all workers, takes the mean of their gradients, clips its norm, updates once and sends the
  weights to all. Equal to one process but for the order of additions.
- async: it applies each gradient, the mean over that worker's share, when it comes, clipped and at the learning rate
  of the server's step, as Downpour SGD does (Dean et al., NIPS 2012). A step of the trial is then as many updates as
  there are workers. A gradient's staleness is counted in the updates since the weights that it was computed on.

Weights are drawn from the same seed on every rank, so the first pull, which would bring the same, is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
from zerobench.rank.strategies.server_link import Link
from zerobench.rank.strategies.torch_loop import TorchLoop, loss_scale

_SERVER = 0


def server_or_worker(job: Job) -> Server | Worker:
    """The side that this rank is."""
    return Server(job) if role_of(job.trial, dist.get_rank()) is Role.SERVER else Worker(job)


class _Side(TorchLoop):
    """What both sides know of each other."""

    def build(self) -> None:
        """Build what the side holds, and the link."""
        self._build_states()
        job = self.job
        self._link = Link(job.device.backend, job.device.synchronize, job.heard)
        self._sent = [p for p in self.module.parameters() if p.requires_grad]
        self._is_sync = job.trial.consistency is Consistency.SYNC

    def _build_states(self) -> None:
        super().build()

    def effective_config(self) -> dict[str, Any]:
        """The side, and the bytes that the paper's push and pull take."""
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
        """One gradient of each worker: all at once, or one by one. There is no data and no loss: zero."""
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
        """Until all workers have gradients, or the next one has."""
        messages = [self._link.hear(worker) for worker in self._workers] if self._is_sync else [self._link.hear()]
        self._staleness += [self._version - version for _, version in messages]
        served = [worker for worker, _ in messages]
        for worker in served:
            self._link.tell(worker, self._version)
        return served

    @torch.no_grad()
    def _receive_gradients(self, workers: Sequence[int]) -> None:
        """Sum the gradients of `workers`, which have divided them by their number."""
        first, *others = workers
        for parameter in self._sent:
            parameter.grad = _new_gradient(parameter)
            self._link.receive(parameter.grad, first)
            if others:
                self._add(parameter.grad, others)

    def _add(self, gradient: torch.Tensor, workers: Sequence[int]) -> None:
        """Add what `workers` send, through a buffer that is let go before the next tensor comes."""
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
    """Zeros and not empty: where the workers are not there (solo), nothing is received."""
    return torch.zeros_like(parameter)


def _new_buffer(gradient: torch.Tensor) -> torch.Tensor:
    """Where the gradients of the second worker and the next ones come in, one at a time."""
    return torch.zeros_like(gradient)


class Worker(_Side):
    """The model and its gradients; no optimizer."""

    def build(self) -> None:
        """Build the model and the link."""
        super().build()
        self._version = 0
        self._divided_by = num_workers(self.job.trial) if self._is_sync else 1  # the server sums what is to be a mean

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
        """Send the gradients, each let go as soon as it is sent."""
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
        """The server's; none is here."""
        return None

    def save(self, folder: Path) -> None:
        """Nothing: the server has all of it."""

    def load(self, folder: Path) -> None:
        """The weights that the server saved."""
        load_whole(model_states(self.module), folder)

    def walk(self) -> Iterable[NamedTensor]:
        """The model and its gradients."""
        return walk_module(self.module)

    def _own_config(self) -> dict[str, Any]:
        return {"loss_scale": self._scale}
