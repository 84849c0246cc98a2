"""One stage of a model on its rank, its optimizer, and the requests of the driver and of the other stages.

torch.distributed.rpc runs requests on a thread of its own, one on each rank here, so that a stage does one thing at a
time. The rank's main thread only opens and closes the phases of the step as the driver demands, and while a phase is
open the ledger accounts for the RPC thread too (`Phases.elsewhere`). Distributed autograd runs the backward pass on a
third thread, with the settings of the second; its only Python are the hooks set here, on inputs and outputs.

A gradient of distributed autograd is not in `parameter.grad` but in the context of the step, until the optimizer takes
it and the driver leaves the context (torch/csrc/distributed/autograd/context/context.h).
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd

from zerobench.common.vocabulary import Category, Phase
from zerobench.config.trial.trial import Precision, TrialSpec
from zerobench.rank.ledger.engine_tensors import NamedTensor, walk_masters, walk_module, walk_optimizer_states
from zerobench.rank.optimizers import make_optimizer
from zerobench.rank.strategies.base import Job, Phases
from zerobench.rank.strategies.checkpoint_states import States, named_states
from zerobench.rank.strategies.stages import build_stage
from zerobench.rank.strategies.torch_loop import loss_scale
from zerobench.rank.training.mixed_precision import MasterWeights, unscale


class StageOptimizer:
    """The trial's optimizer over one stage's parameters, driven by torch's DistributedOptimizer on each rank.

    Unscales, clips and updates; in 16 bits on fp32 master weights. DistributedOptimizer takes any class with parameters
    and a `step` (torch/distributed/optim/optimizer.py, _LocalOptimizer), and first copies the gradients of the step's
    context into `parameter.grad`. torch's own functional optimizers, which it prefers, have a fixed learning rate and
    no fp32 master weights, so they are not used.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], trial: TrialSpec) -> None:
        self._parameters = parameters
        self._masters = None if trial.precision is Precision.FP32 else MasterWeights(parameters)
        self.updated: Sequence[torch.Tensor] = parameters if self._masters is None else self._masters.masters
        """The parameters themselves, or their fp32 masters."""
        self.inner = make_optimizer([{"params": self.updated}], trial)
        self._divisor = self.loss_scale = loss_scale(trial)
        self.busy_s = 0.0
        """Seconds spent in updates; reset at each step."""

    @property
    def masters(self) -> Sequence[torch.Tensor]:
        """fp32 master weights; empty in fp32."""
        return () if self._masters is None else self._masters.masters

    def prepare(self, clip: float, learning_rate: float) -> None:
        """Set the factor of the unscaled gradients and the learning rate for the next update."""
        self._divisor = self.loss_scale / clip
        for group in self.inner.param_groups:
            group["lr"] = learning_rate

    def step(self) -> None:
        """Update, and free the gradients."""
        start = time.perf_counter()
        if self._masters is not None:
            self._masters.take_gradients(scale=self._divisor)
        else:
            unscale(self._parameters, self._divisor)
        self.inner.step()
        self.inner.zero_grad(set_to_none=True)
        if self._masters is not None:
            self._masters.give_weights()
        self.busy_s += time.perf_counter() - start


DRIVER = 0
"""The rank that reads the data, holds the first stage and directs the others."""

Send = Callable[[int, int, torch.Tensor], None]
"""Sends to a rank the index and hidden states of a micro-batch, or its loss to the driver."""

_RELEASED_WITHIN_S = 60.0


class HeldStage:
    """The stage of this rank, its optimizer, and the progress of the step."""

    phases: Phases
    """Phases of the current step; set before the driver gets an answer."""
    busy_s: float
    """Seconds spent in forward, backward and update; reset at each step."""

    def __init__(self, job: Job, rank: int, send: Send) -> None:
        """Build the stage, with its initial weights, and its optimizer."""
        self.rank = rank
        self.stage = build_stage(job, rank, job.trial.world_size)
        self.parameters = [p for p in self.stage.parameters() if p.requires_grad]
        self.optimizer = StageOptimizer(self.parameters, job.trial)
        self.orders = SimpleQueue[Phase | BaseException | None]()
        """Messages to the main thread: the next phase, None at the end of the step, or an error."""
        self.losses = SimpleQueue[torch.Tensor]()
        """On the driver: losses of micro-batches, in order of arrival."""
        self._heard = job.heard
        self._send = send
        self._labels: Sequence[torch.Tensor] = ()
        self._context_id: int | None = None
        self._opened = threading.Semaphore(0)
        self._watching = ExitStack()
        self._backward_since_s = 0.0
        if self.stage.is_first:  # the gradient of its embedding is the last one of a micro-batch
            self.stage.model.get_input_embeddings().weight.register_hook(self._ends_backward)

    def follow(self, phases: Phases) -> None:
        """Follow one step of the driver, in the main thread. Raises errors of this stage."""
        self.phases = phases
        order = self._next_order()
        while order is not None:
            with phases.phase(order):
                self._opened.release()
                order = self._next_order()
                if order is None:
                    self._wait_released()

    def _next_order(self) -> Phase | None:
        order = self.orders.get()
        if isinstance(order, BaseException):
            raise order
        return order

    def _wait_released(self) -> None:
        """Wait until the driver has left the step's context, which frees the gradients in it."""
        deadline = time.monotonic() + _RELEASED_WITHIN_S
        while self._context_id is not None and _is_context(self._context_id) and time.monotonic() < deadline:
            time.sleep(0.0005)
        self._context_id = None

    def walk(self) -> Iterator[NamedTensor]:
        """Tensors of the stage, its gradients and its optimizer."""
        yield from walk_module(self.stage)
        for gradient in self.gradients():
            yield NamedTensor(gradient, Category.GRADIENTS)
        yield from walk_masters(self.optimizer.masters)
        yield from walk_optimizer_states(self.optimizer.inner)

    def states(self) -> States:
        """States for a checkpoint, by the names of the whole model."""
        return named_states(self.stage.model, self.optimizer.updated, self.optimizer.inner)

    def gradients(self) -> list[torch.Tensor]:
        """Gradients in the step's context, in the parameters' precision; empty outside of a step."""
        context_id = self._context_id
        if context_id is None or not _is_context(context_id):
            return []
        return list(dist_autograd.get_gradients(context_id).values())  # type: ignore[attr-defined] # not exported by name

    def begin(self, phase: Phase, context_id: int) -> None:
        """Let the main thread open a phase, and account for this thread too while it is open."""
        self._watching.close()
        self._context_id = context_id
        if self.rank != DRIVER:  # the driver's main thread has already opened it
            self.orders.put(phase)
            self._opened.acquire()
        self._watching.enter_context(self.phases.elsewhere())

    def take_labels(self, labels: Sequence[torch.Tensor]) -> None:
        """Take the tokens of every micro-batch of the step, on the last stage."""
        self._labels = labels
        for tokens in labels:
            self._takes(tokens, Category.INPUTS)

    def end(self) -> None:
        """End the step."""
        self._watching.close()
        self._labels = ()
        if self.rank != DRIVER:
            self.orders.put(None)

    def forward(self, index: int, received: torch.Tensor) -> None:
        """Run the stage on micro-batch `index`, and send its output: hidden states, or the loss on the last stage.

        `received`: tokens, int64 [batch, sequence], at the first stage, else hidden states.
        """
        if not self.stage.is_first:
            self._takes(received, Category.ACTIVATIONS)
            received.register_hook(self._ends_backward)
        with self.busy():
            out = self.stage(received)
            if self.stage.is_last:
                out = self._loss(out, self._labels[index])
        out.register_hook(self._begins_backward)
        self._heard("send", dist.get_world_size(), out.nbytes)
        self._send(DRIVER if self.stage.is_last else self.rank + 1, index, out)

    def take_loss(self, loss: torch.Tensor) -> None:
        """Take the loss of a micro-batch, on the driver."""
        self._takes(loss, Category.LOGITS_AND_LOSS)
        loss.register_hook(lambda gradient: self._heard("send", dist.get_world_size(), gradient.nbytes))
        self.losses.put(loss)

    def squared_norm(self) -> float:
        """Squared norm of all gradients of the stage, before clipping."""
        with self.busy():
            norms = [torch.linalg.vector_norm(g, dtype=torch.float32) for g in self.gradients()]
            return float(torch.stack(norms).double().square().sum())

    def _loss(self, logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        loss = self.stage.loss(logits, tokens)
        self.phases.mark_loss(loss)
        logits.register_hook(lambda gradient: self.phases.came_in(gradient, Category.LOGITS_AND_LOSS))
        return loss

    def _begins_backward(self, gradient: torch.Tensor) -> None:
        """Hook on the output: its gradient has arrived."""
        self._takes(gradient, Category.TEMPORARIES)
        self._backward_since_s = time.perf_counter()

    def _ends_backward(self, gradient: torch.Tensor) -> None:
        """Hook on the last gradient of a micro-batch: that of the input, to be sent back, or of the first weight.

        Gradients are summed out of place: the next micro-batch replaces the tensors that are in the context now.
        """
        self.busy_s += time.perf_counter() - self._backward_since_s
        if not self.stage.is_first:
            self._heard("send", dist.get_world_size(), gradient.nbytes)
        for parameter_gradient in self.gradients():
            self.phases.came_in(parameter_gradient, Category.GRADIENTS)

    def _takes(self, tensor: torch.Tensor, category: Category) -> None:
        self._heard("recv", dist.get_world_size(), tensor.nbytes)
        self.phases.came_in(tensor, category)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count the time inside as work."""
        start = time.perf_counter()
        yield
        self.busy_s += time.perf_counter() - start


def _is_context(context_id: int) -> bool:
    """True if this rank has the context of distributed autograd."""
    try:
        dist_autograd._is_valid_context(context_id)  # type: ignore[attr-defined] # not exported by name
    except RuntimeError:
        return False
    return True
