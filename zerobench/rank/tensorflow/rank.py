"""Runs one process of a TensorFlow trial from start to end: build, first step, memory steps, timed steps, record.

Steps have the order of the other frameworks (zerobench/rank/loop/rank.py): first, warm-up, memory, warm-up, timed. A
step is one graph, so forward, backward and update are not separable from outside: for memory the whole step is the
phase `step`, and the three have no times of their own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from zerobench.common.environments import running_in
from zerobench.common.processor import processor_name
from zerobench.common.vocabulary import Phase, Status, StepKind
from zerobench.config.derived.flops import model_flops_per_token
from zerobench.config.derived.roles import Role, role_of
from zerobench.config.derived.step_plan import UNDER_LEDGER, step_kinds
from zerobench.config.models.parameters import ParameterCounts
from zerobench.config.trial.trial import TfStrategy, TrialSpec
from zerobench.rank.ledger.host import resident_bytes, unpin_malloc
from zerobench.rank.loop.checkpoint_saves import Checkpoints
from zerobench.rank.tensorflow.engine import Engine
from zerobench.rank.tensorflow.memory import MemoryBook
from zerobench.rank.tensorflow.parameter_server import Server, Worker
from zerobench.rank.tensorflow.replicated import ReplicatedModel
from zerobench.rank.tensorflow.start import Start
from zerobench.records.folder import TrialFolder
from zerobench.records.progress import ProgressFile, Rank
from zerobench.records.records import ParameterTensor, PhaseMark, RankRecord, StepBatch, StepTime

_ONE_GRAPH = (
    "a step is one graph: forward, backward and update are one phase, step, without separate times; "
    "gradient norm unknown"
)


class TensorflowPeers:
    """The other processes of the trial, for saves and loads of a checkpoint; all on CPUs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def barrier(self) -> None:
        """Wait for all processes."""
        self._engine.barrier()

    def synchronize(self) -> None:
        """Do nothing: results of a graph are already computed."""

    def start_device_peak(self) -> int | None:
        """None: there is no GPU."""
        return None

    def device_peak(self) -> int | None:
        return None


class TensorflowRun:
    """The trial in this process. `record` grows as it runs, so that a failure keeps earlier measurements."""

    def __init__(self, trial: TrialSpec, folder: TrialFolder, start: Start, rank: Rank, progress: ProgressFile) -> None:
        self.trial = trial
        self._folder, self._rank = folder, rank
        self._start = start
        self._progress = progress
        self._losses: list[list[float]] = []
        self.record = RankRecord(
            trial_id=trial.trial_id,
            **asdict(replace(rank, world_size=trial.world_size)),
            role=role_of(trial, rank.rank),
            status=Status.CRASH,
            device_type="tpu" if trial.tf_strategy is TfStrategy.TPU else "cpu",
            device_name="TPU" if trial.tf_strategy is TfStrategy.TPU else processor_name() or "cpu",
            backend=f"tf.distribute {trial.tf_strategy.value}",
            micro_batch_size=trial.micro_batch_size,
        )

    def run(self) -> None:
        """Run the whole trial; the record's status becomes completed only at its end."""
        self._engine = _make_engine(self.trial, self._rank.rank)
        self._checkpoints = Checkpoints(
            self.trial, self._folder, self._rank, TensorflowPeers(self._engine), self.record
        )
        self._tokens = self._start.tokens()
        self._progress.say("init", -1, always=True)
        self._memory = MemoryBook(self._engine.counter())
        try:
            with self._memory.phase(StepKind.FIRST, Phase.INIT), self._mark(Phase.INIT, -1, "first"):
                self._engine.build(self._start)
                self._memory.named = self._engine.named_bytes()
            self._describe()
            self._checkpoints.load(self._engine)
            self._train()
        finally:
            self._collect()
        self._gather_losses()
        self.record.status = Status.COMPLETED
        self._progress.say("done", self.trial.steps.total, always=True)

    def _collect(self) -> None:
        """Put the results of all phases into the record, also after a failure."""
        self.record.memory, self.record.process_memory = self._memory.rows, self._memory.process_rows

    def _gather_losses(self) -> None:
        """Average each step's losses over all replicas, after the last step and at each checkpoint."""
        self.record.losses = self._checkpoints.position.losses + self._engine.mean(self._losses)

    def _describe(self) -> None:
        """Record the built model and engine."""
        record, trial, engine = self.record, self.trial, self._engine
        counts: dict[str, int] = {}
        for name in self._start.parameters:
            size, component = self._start.parameter(name).size, self._start.components[name]
            counts[component] = counts.get(component, 0) + size
        total = sum(counts.values())
        record.parameters = ParameterTensor(total=total, trainable=total, by_component=counts)
        parameter_counts = ParameterCounts.from_components(counts)
        per_token, record.flops_formula = model_flops_per_token(trial.model, trial.sequence_length, parameter_counts)
        if per_token is not None and engine.samples_per_step:
            record.flops_per_step = per_token * engine.samples_per_step * trial.sequence_length
        record.effective_config = {**engine.effective_config(), "environment": running_in("tensorflow")}
        record.notes += [self._memory.counter.note, _ONE_GRAPH, *engine.notes]

    def _train(self) -> None:
        """Run all steps; malloc is unpinned once, after the first memory steps."""
        is_loose, before = False, ""
        for index, kind in enumerate(step_kinds(self.trial.steps)):
            if before == "memory" and kind != "memory" and not is_loose:
                is_loose = unpin_malloc()
                self._checkpoints.is_malloc_pinned = not is_loose
            before = kind
            if index >= self._checkpoints.position.step:  # an earlier launch took those before
                self._checkpoints.die_if_due(index, self._collect)
                self._step(index, kind)
                if self._checkpoints.is_due(index + 1):
                    self._progress.say("save", index, always=True)
                    self._gather_losses()
                    self._checkpoints.save(self._engine, index + 1, self.record.losses)

    def _step(self, index: int, kind: str) -> None:
        """Take one optimizer step. The batch is on its device before the step's clock starts."""
        placed = self._engine.place(np.asarray(self._tokens[index]), self._start.learning_rates[index])
        batch = StepBatch(kind=kind, tokens=self.trial.global_batch_tokens)
        if kind in UNDER_LEDGER:
            with self._memory.phase(UNDER_LEDGER[kind], Phase.STEP):
                self._run_step(placed, index, kind)
            batch.device_peak_bytes = self._memory.peak_bytes(UNDER_LEDGER[kind], Phase.STEP)
        else:
            self._run_step(placed, index, kind)
        self.record.batches.append(batch)
        rate = self._engine.learning_rate()
        self.record.learning_rates += [] if rate is None else [rate]
        self._progress.say(kind, index, resident_bytes())

    def _run_step(self, placed: Any, index: int, kind: str) -> None:
        with self._mark(Phase.STEP, index, kind):
            begun = time.perf_counter()
            losses = self._engine.step(placed)
            step_s = time.perf_counter() - begun
        self._losses.append(losses)
        if kind == "timed":
            self.record.step_times.append(StepTime(step_s=step_s, forward_s=None, backward_s=None, optimizer_s=None))

    @contextmanager
    def _mark(self, phase: Phase, index: int, kind: str) -> Iterator[None]:
        start = time.time()
        yield
        self.record.marks.append(PhaseMark(step_index=index, kind=kind, phase=phase, start_s=start, end_s=time.time()))


def _make_engine(trial: TrialSpec, rank: int) -> Engine:
    """Make the engine of process `rank`; it joins the other processes, so TensorFlow must not have run before."""
    if trial.tf_strategy is TfStrategy.PARAMETER_SERVER:
        return Server(trial) if role_of(trial, rank) is Role.SERVER else Worker(trial)
    return ReplicatedModel(trial)
