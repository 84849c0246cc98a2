"""torch.compile of the model or of each of its blocks, by whoever runs it, and what came of it.

Steps under the ledger run the model as it is. The ledger sees operations by a dispatch mode, and compiled code
allocates where no operation is seen; nor does dynamo compile under such a mode, and a function whose first call was
under one is never compiled again in the same process (torch/_dynamo/convert_frame.py). So those steps are run with
dynamo's stance `force_eager`, which leaves no trace, and memory is that of the uncompiled model. What compiled steps
take on a GPU is in the record by itself.

Blocks are compiled in place (`Module.compile`), before anything wraps them, as torchtitan does it
(torchtitan/models/llama3/infra/parallelize.py, apply_compile): they share one graph, and whoever gathers parameters or
reduces gradients by hooks does so between them.
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
"""Keys of dynamo's times: of tracing with forward, and of the backward graph, which is compiled when first run."""


def compile_blocks(model: torch.nn.Module, trial: TrialSpec) -> None:
    """Compile each block of `model`, where the trial asks for that, at its first call."""
    if trial.compile is Compile.BLOCKS:
        for block in blocks(model):
            block.compile(backend=BACKEND)


def compile_whole(model: torch.nn.Module, trial: TrialSpec) -> None:
    """Compile `model` as a whole, where the trial asks for that, at its first call."""
    if trial.compile is Compile.MODEL:
        model.compile(backend=BACKEND)


def blocks(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The model's blocks: modules of the classes that transformers says are not to be split."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    for module in model.modules():
        if names & {base.__name__ for base in type(module).__mro__}:  # fully_shard gives a module a class of its own
            yield module


def eagerly(trial: TrialSpec) -> AbstractContextManager[Any]:
    """Within it the model runs as it is, as the ledger needs."""
    if trial.compile is Compile.NONE:
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


class CompilationWatch:
    """What torch.compile did in this process while the trial ran; nothing where the trial asks for none."""

    def __init__(self, trial: TrialSpec, device: Device) -> None:
        self._mode, self._device = trial.compile, device
        self._timed_peak_bytes: int | None = None
        self._graphs_in_timed_steps = 0

    @contextmanager
    def timed_step(self) -> Iterator[None]:
        """Look at the allocator and at recompilations around a timed step, outside of its clock."""
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
        """What there is to know so far."""
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
        """What a reader of the figures must know."""
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
