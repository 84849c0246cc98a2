"""torch.compile of the model or of each of its blocks, and its statistics.

Steps under the ledger run the uncompiled model. The ledger sees operations through a dispatch mode, and compiled code
allocates outside of operations; dynamo does not compile under such a mode either, and a function whose first call was
under one is never compiled in the same process (torch/_dynamo/convert_frame.py). So these steps run with dynamo's
stance `force_eager`, which leaves no trace, and memory rows are of the uncompiled model. The record has the GPU peak of
compiled steps separately.

Blocks are compiled in place (`Module.compile`), before anything wraps them, as in torchtitan
(torchtitan/models/llama3/infra/parallelize.py, apply_compile): they share one graph, and hooks that gather parameters
or reduce gradients run between them.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from zerobench.config.trial.trial import Compile, TrialSpec
from zerobench.rank.ledger.device import Device
from zerobench.records.records import Compilation

BACKEND = "inductor"
"""torch's own compiler, which generates Triton kernels on GPUs and C++ on CPUs."""

_SPENT = ("_compile.compile_inner", "backward._backward_impl")
"""Keys of dynamo's times: tracing with the forward graph, and the backward graph, which is compiled when first run."""


def compile_blocks(model: torch.nn.Module, trial: TrialSpec) -> None:
    """Compile each block of `model` at its first call, if the trial asks for it."""
    if trial.compile is Compile.BLOCKS:
        for block in blocks(model):
            block.compile(backend=BACKEND)


def compile_whole(model: torch.nn.Module, trial: TrialSpec) -> None:
    """Compile `model` as a whole at its first call, if the trial asks for it."""
    if trial.compile is Compile.MODEL:
        model.compile(backend=BACKEND)


def blocks(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Blocks of the model: modules of the classes in transformers' `_no_split_modules`."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    for module in model.modules():
        if names & {base.__name__ for base in type(module).__mro__}:  # fully_shard gives a module a class of its own
            yield module


def eagerly(trial: TrialSpec) -> AbstractContextManager[Any]:
    """Context in which the model runs uncompiled, for the ledger."""
    if trial.compile is Compile.NONE:
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


class CompilationWatch:
    """Observes torch.compile in this process during the trial; does nothing if the trial does not compile."""

    def __init__(self, trial: TrialSpec, device: Device) -> None:
        self._mode, self._device = trial.compile, device
        self._timed_peak_bytes: int | None = None
        self._graphs_in_timed_steps = 0

    @contextmanager
    def timed_step(self) -> Iterator[None]:
        """Observe allocator and recompilations around a timed step, outside of its clock."""
        if self._mode is Compile.NONE:
            yield
            return
        before = _counter("stats", "unique_graphs")
        if self._device.is_cuda:
            torch.cuda.reset_peak_memory_stats(self._device.torch_device)
        yield
        self._graphs_in_timed_steps += _counter("stats", "unique_graphs") - before
        if self._device.is_cuda:
            peak = torch.cuda.max_memory_allocated(self._device.torch_device)
            self._timed_peak_bytes = max(peak, self._timed_peak_bytes or 0)

    def record(self) -> Compilation | None:
        """Statistics so far; None if the trial does not compile."""
        if self._mode is Compile.NONE:
            return None
        from torch._dynamo.utils import compilation_time_metrics, counters

        return Compilation(
            backend=BACKEND,
            seconds=math.fsum(second for key in _SPENT for second in compilation_time_metrics.get(key, ())),
            num_graphs=_counter("stats", "unique_graphs"),
            num_graph_breaks=sum(counters["graph_break"].values()),
            num_graphs_in_timed_steps=self._graphs_in_timed_steps,
            timed_peak_allocated_bytes=self._timed_peak_bytes,
        )

    def notes(self) -> list[str]:
        """Notes for readers of the figures."""
        record = self.record()
        if record is None:
            return []
        notes = ["compile: memory rows are of the uncompiled model, which runs in the memory steps"]
        if record.num_graphs == 0:
            notes.append("compile: torch.compile captured no graph")
        if record.num_graphs_in_timed_steps:
            notes.append(
                f"compile: {record.num_graphs_in_timed_steps} graphs were compiled during timed steps; "
                "more warm-up steps would exclude that"
            )
        return notes


def _counter(group: str, name: str) -> int:
    from torch._dynamo.utils import counters

    return int(counters[group][name])
