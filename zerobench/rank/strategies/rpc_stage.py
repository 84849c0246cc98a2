"""One stage of a model as its rank holds it, and what the driver and the other stages ask of it.

torch.distributed.rpc runs what it is asked for on a thread of its own, of which each rank has one here, so that a
stage does one thing at a time. The rank's main thread only opens and closes the phases of the step as the driver says,
and while a phase is open that other thread is looked at as the main one is (`Phases.elsewhere`). Distributed autograd
runs the backward pass on a third thread, under the settings of the second. No Python is in it but the hooks that are
set here, on what comes in and on what goes out.

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
from zerobench.rank.ledger.engine_tensors import NamedTensor, walk_masters, walk_module, walk_optimizer_states
from zerobench.rank.strategies.base import Job, Phases
from zerobench.rank.strategies.checkpoint_states import States, named_states
from zerobench.rank.strategies.rpc_optimizer import StageOptimizer
from zerobench.rank.strategies.stages import build_stage

DRIVER = 0
"""The rank that reads the data, holds the first stage and tells the others what to do."""

Send = Callable[[int, int, torch.Tensor], None]
"""Sends to a rank: the micro-batch's index and hidden states, or to the driver its loss."""

_RELEASED_WITHIN_S = 60.0


class HeldStage:
    """The stage of this rank, its optimizer, and how far the step is."""

    phases: Phases
    """Of the step under way; set before the driver is answered."""
    busy_s: float
    """Seconds spent in forward, backward and update; whoever takes steps sets it to 0 before."""

    def __init__(self, job: Job, rank: int, send: Send) -> None:
        """Build the stage, with its initial weights, and its optimizer."""
        self.rank = rank
        self.stage = build_stage(job, rank, job.trial.world_size)
        self.parameters = [p for p in self.stage.parameters() if p.requires_grad]
        self.optimizer = StageOptimizer(self.parameters, job.trial)
        self.orders = SimpleQueue[Phase | BaseException | None]()
        """To the main thread: the phase that begins, None where the step has ended, or what went wrong."""
        self.losses = SimpleQueue[torch.Tensor]()
        """On the driver: losses of micro-batches, as they come."""
        self._heard = job.heard
        self._send = send
        self._labels: Sequence[torch.Tensor] = ()
        self._context_id: int | None = None
        self._opened = threading.Semaphore(0)
        self._watching = ExitStack()
        self._backward_since_s = 0.0
        if self.stage.is_first:  # its embedding's gradient is the last that is computed for a micro-batch
            self.stage.model.get_input_embeddings().weight.register_hook(self._ends_backward)

    def follow(self, phases: Phases) -> None:
        """In the main thread: one step as the driver says. Raises what went wrong in this stage."""
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
        """Until word has come that the driver left the step's context, and the gradients in it are gone."""
        deadline = time.monotonic() + _RELEASED_WITHIN_S
        while self._context_id is not None and _is_context(self._context_id) and time.monotonic() < deadline:
            time.sleep(0.0005)
        self._context_id = None

    def walk(self) -> Iterator[NamedTensor]:
        """The stage, its gradients wherever they are, and what its optimizer keeps."""
        yield from walk_module(self.stage)
        for gradient in self.gradients():
            yield NamedTensor(gradient, Category.GRADIENTS)
        yield from walk_masters(self.optimizer.masters)
        yield from walk_optimizer_states(self.optimizer.inner)

    def states(self) -> States:
        """What a checkpoint keeps, by the names of the whole model."""
        return named_states(self.stage.model, self.optimizer.updated, self.optimizer.inner)

    def gradients(self) -> list[torch.Tensor]:
        """Those in the step's context, in the parameters' precision; none outside of a step."""
        context_id = self._context_id
        if context_id is None or not _is_context(context_id):
            return []
        return list(dist_autograd.get_gradients(context_id).values())  # type: ignore[attr-defined] # not exported by name

    def begin(self, phase: Phase, context_id: int) -> None:
        """Have the main thread open a phase, and look at this thread too while it is open."""
        self._watching.close()
        self._context_id = context_id
        if self.rank != DRIVER:  # whose main thread has opened it before it told the others
            self.orders.put(phase)
            self._opened.acquire()
        self._watching.enter_context(self.phases.elsewhere())

    def take_labels(self, labels: Sequence[torch.Tensor]) -> None:
        """On the last stage: the tokens of every micro-batch of the step."""
        self._labels = labels
        for tokens in labels:
            self._takes(tokens, Category.INPUTS)

    def end(self) -> None:
        """The step has ended."""
        self._watching.close()
        self._labels = ()
        if self.rank != DRIVER:
            self.orders.put(None)

    def forward(self, index: int, received: torch.Tensor) -> None:
        """Run the stage on micro-batch `index`, and send on what it gives: hidden states, at the last stage the loss.

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
        """On the driver: the loss of a micro-batch."""
        self._takes(loss, Category.LOGITS_AND_LOSS)
        loss.register_hook(lambda gradient: self._heard("send", dist.get_world_size(), gradient.nbytes))
        self.losses.put(loss)

    def squared_norm(self) -> float:
        """Of the stage's gradients together, as the backward pass left them."""
        with self.busy():
            norms = [torch.linalg.vector_norm(g, dtype=torch.float32) for g in self.gradients()]
            return float(torch.stack(norms).double().square().sum())

    def _loss(self, logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        loss = self.stage.loss(logits, tokens)
        self.phases.mark_loss(loss)
        logits.register_hook(lambda gradient: self.phases.came_in(gradient, Category.LOGITS_AND_LOSS))
        return loss

    def _begins_backward(self, gradient: torch.Tensor) -> None:
        """The gradient of what was sent has come."""
        self._takes(gradient, Category.TEMPORARIES)
        self._backward_since_s = time.perf_counter()

    def _ends_backward(self, gradient: torch.Tensor) -> None:
        """The last gradient of a micro-batch: of what was received, to be sent back, or of the first weight.

        Gradients are summed out of place: what the context holds now is let go with the next micro-batch.
        """
        self.busy_s += time.perf_counter() - self._backward_since_s
        if not self.stage.is_first:
            self._heard("send", dist.get_world_size(), gradient.nbytes)
        for kept in self.gradients():
            self.phases.came_in(kept, Category.GRADIENTS)

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
    """Whether a context of distributed autograd is there on this rank."""
    try:
        dist_autograd._is_valid_context(context_id)  # type: ignore[attr-defined] # not exported by name
    except RuntimeError:
        return False
    return True
