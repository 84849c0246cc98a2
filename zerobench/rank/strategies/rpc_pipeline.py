"""Layers on remote workers: a pipeline of stages over torch.distributed.rpc, with distributed autograd.

After torch's tutorials on distributed pipeline parallelism with RPC: shards of a model as remote references, a context
of distributed autograd for each step, a DistributedOptimizer over references to all parameters. As there, one rank
drives and the others answer. The driver also holds the first stage, so that a model on N ranks is divided into N stages
as under `pipeline`, and ranks of the two can be compared one by one.

A stage sends hidden states directly to the next one, and the last stage sends the loss to the driver. All micro-batches
go forward before one backward pass over all losses: GPipe's schedule (Huang et al., arXiv 1811.06965), the only one
that distributed autograd supports.

The stage of each rank is a module-level variable, since RPC sends functions by name. RPC executes what it receives, so
it listens only on the loopback interface.
"""

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer

from zerobench.common.vocabulary import Phase
from zerobench.config.trial.trial import PipelineSchedule, TrialSpec
from zerobench.rank.ledger.engine_tensors import NamedTensor
from zerobench.rank.strategies.base import Job, Phases, Strategy, only_learning_rate, optimizer_settings
from zerobench.rank.strategies.checkpoint_states import load_parts, make_optimizer_states, save_parts
from zerobench.rank.strategies.pipeline import own_part
from zerobench.rank.strategies.rpc_stage import DRIVER, HeldStage, StageOptimizer

_held: HeldStage | None = None
"""The stage of this process, for functions that are called by RPC."""

_THREADS = 1
"""RPC threads on each rank. Their work never waits for an answer, so one is enough."""

_backward: Any = dist_autograd.backward  # type: ignore[attr-defined] # not exported by name

_RECEIVED = "rpc-pipeline: received tensors are unattributed until the stage takes them up"


class RpcPipeline(Strategy):
    """A stage on every rank; the first one drives."""

    notes = (_RECEIVED,)

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._rank = dist.get_rank()
        self._ranks = range(job.trial.world_size)

    def build(self) -> None:
        """Build this rank's stage, join the others by RPC, and on the driver make the optimizer of all of them."""
        global _held  # noqa: PLW0603 - where functions that are called by RPC look
        self._stage = _held = HeldStage(self.job, self._rank, _send)
        self.module = self._stage.stage.model
        self.whole_parameters = self._stage.stage.whole_parameters
        _join(self._rank, self.job.trial)
        if self._rank == DRIVER:
            references = [reference for held in self._ask_all(_parameter_references) for reference in held]
            self._optimizer = DistributedOptimizer(_local_optimizer, references)
        dist.barrier()

    def step(self, micro_batches: Sequence[torch.Tensor], learning_rate: float, phases: Phases) -> torch.Tensor:
        """Drive one optimizer step, or follow it. Returns the loss on the driver, elsewhere 0."""
        stage = self._stage
        stage.phases = phases
        stage.busy_s = stage.optimizer.busy_s = 0.0
        start = time.perf_counter()
        loss = 0.0
        if self._rank == DRIVER:
            loss = self._drive(micro_batches, learning_rate, phases)
        else:
            stage.follow(phases)
        self.wait_s = time.perf_counter() - start - stage.busy_s - stage.optimizer.busy_s
        return torch.tensor(loss)

    def _drive(self, micro_batches: Sequence[torch.Tensor], learning_rate: float, phases: Phases) -> float:
        with ExitStack() as stack:
            context_id = stack.enter_context(dist_autograd.context())
            with self._phase(Phase.FORWARD, context_id, phases):
                losses = self._forward(micro_batches)
            mean = float(torch.stack([loss.detach() for loss in losses]).mean())
            with self._phase(Phase.BACKWARD, context_id, phases):
                share = self._stage.optimizer.loss_scale / len(micro_batches)
                _backward(context_id, [loss * share for loss in losses])
                losses.clear()
            with self._phase(Phase.STEP, context_id, phases):
                self._update(context_id, learning_rate)
                stack.close()
        self._ask_all(_end)
        return mean

    @contextmanager
    def _phase(self, phase: Phase, context_id: int, phases: Phases) -> Iterator[None]:
        """Bracket a phase on all ranks: all have entered it before any work begins."""
        with phases.phase(phase):
            self._ask_all(_begin, phase, context_id)
            yield

    def _forward(self, micro_batches: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Send all micro-batches through all stages; returns their losses in order of arrival."""
        for tokens in micro_batches:
            self.job.heard("send", dist.get_world_size(), tokens.nbytes)
        rpc.rpc_sync(_name(self._ranks[-1]), _take_labels, args=(list(micro_batches),))
        for index, tokens in enumerate(micro_batches):
            self._stage.forward(index, tokens)
        return [self._stage.losses.get(timeout=self.job.trial.peers_limit_s) for _ in micro_batches]

    def _update(self, context_id: int, learning_rate: float) -> None:
        """Clip by the norm over all stages, then update each."""
        largest, clip = self.job.norms.largest, 1.0
        if largest is not None:
            norm = math.sqrt(sum(self._ask_all(_squared_norm))) / self._stage.optimizer.loss_scale
            clip = min(1.0, largest / (norm + 1e-6))  # as torch.nn.utils.clip_grad_norm_
            self.job.norms.tell(norm)
        self._ask_all(_prepare, clip, learning_rate)
        self._optimizer.step(context_id)

    def _ask_all(self, function: Callable[..., Any], *arguments: object) -> list[Any]:
        """Call a function on every rank, including this one, and wait for the results."""
        futures = [rpc.rpc_async(_name(rank), function, args=arguments) for rank in self._ranks]
        return [future.wait() for future in futures]

    def save(self, folder: Path) -> None:
        """Save each rank's stage over the process group: RPC is only for steps."""
        save_parts(self._stage.states(), folder)

    def load(self, folder: Path) -> None:
        """Load the current stage of each rank."""
        make_optimizer_states(self._stage.optimizer.inner)
        load_parts(self._stage.states(), folder)

    def walk(self) -> Iterable[NamedTensor]:
        """Tensors of this rank's stage."""
        return self._stage.walk()

    def learning_rate(self) -> float | None:
        """Learning rate of this stage's optimizer."""
        return only_learning_rate(self._stage.optimizer.inner)

    def effective_config(self) -> dict[str, Any]:
        """Settings of the optimizer, and this rank's part of the pipeline."""
        optimizer, stage = self._stage.optimizer, self._stage.stage
        pipeline = {
            **own_part(stage, self.job.trial.model_copy(update={"pipeline_schedule": PipelineSchedule.GPIPE})),
            "drives": self._rank == DRIVER,
            "engine": f"torch.distributed.rpc over TensorPipe, {_THREADS} thread a rank",
        }
        return {**optimizer_settings(optimizer.inner), "loss_scale": optimizer.loss_scale, "pipeline": pipeline}


def _join(rank: int, trial: TrialSpec) -> None:
    """Start RPC with the rendezvous of the process group (MASTER_ADDR, MASTER_PORT): torch shares a store in a process.

    One thread on each rank answers requests.
    """
    if torch.get_num_interop_threads() != 1:  # distributed autograd runs on them: one micro-batch at a time
        torch.set_num_interop_threads(1)
    os.environ["TP_SOCKET_IFNAME"] = "lo"
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=_THREADS, rpc_timeout=trial.peers_limit_s)
    rpc.init_rpc(_name(rank), rank=rank, world_size=trial.world_size, rpc_backend_options=options)


def _name(rank: int) -> str:
    return f"stage{rank}"


# Functions that ranks call on each other. RPC pickles them by name, so they are module-level.


def _stage_here() -> HeldStage:
    if _held is None:
        raise RuntimeError("asked for a stage before there is one")
    return _held


def _parameter_references() -> list[Any]:
    return [rpc.RRef(parameter) for parameter in _stage_here().parameters]


def _local_optimizer(_parameters: list[torch.Tensor]) -> StageOptimizer:
    return _stage_here().optimizer


def _begin(phase: Phase, context_id: int) -> None:
    _stage_here().begin(phase, context_id)


def _take_labels(labels: list[torch.Tensor]) -> None:
    _stage_here().take_labels(labels)


def _forward(index: int, received: torch.Tensor) -> None:
    """Run the stage; an error ends this rank, since the sender does not wait for an answer."""
    try:
        _stage_here().forward(index, received)
    except BaseException as error:
        _stage_here().orders.put(error)
        raise


def _take_loss(_index: int, loss: torch.Tensor) -> None:
    _stage_here().take_loss(loss)


def _squared_norm() -> float:
    return _stage_here().squared_norm()


def _prepare(clip: float, learning_rate: float) -> None:
    _stage_here().optimizer.prepare(clip, learning_rate)


def _end() -> None:
    _stage_here().end()


def _send(rank: int, index: int, tensor: torch.Tensor) -> None:
    rpc.rpc_async(_name(rank), _take_loss if rank == DRIVER else _forward, args=(index, tensor))
