"""One process of a TensorFlow trial from start to end: build, first step, memory steps, timed steps, record.

The order of steps is that of the other workers (zerobench/worker/rank.py): first, warm-up, memory, warm-up, timed. A
step is one graph, so forward, backward and update cannot be told apart from outside: for memory all of it is the phase
`step`, and none of the three has a time of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from zerobench.environments import running_in
from zerobench.memory.host import resident_bytes, unpin_malloc
from zerobench.processor import processor_name
from zerobench.progress import ProgressFile, Rank
from zerobench.records import ParameterTensor, Phase, PhaseMark, RankRecord, Status, StepBatch, StepKind, StepTime
from zerobench.spec.batch import micro_batches_per_step
from zerobench.spec.flops import model_flops_per_token
from zerobench.spec.parameters import ParameterCounts, component_of
from zerobench.spec.step_plan import step_kinds
from zerobench.spec.trial import TrialSpec
from zerobench.worker_tensorflow.memory import NOTE, MemoryBook, variable_bytes
from zerobench.worker_tensorflow.model import make_model
from zerobench.worker_tensorflow.optimizers import make_optimizer
from zerobench.worker_tensorflow.start import Start, samples_of
from zerobench.worker_tensorflow.strategies import make_step, make_strategy, mean_over_replicas

_UNDER_LEDGER = {"first": StepKind.FIRST, "memory": StepKind.STEADY}
_ONE_GRAPH = "a step is one graph: forward, backward and update are one phase, step"


class TensorflowRun:
    """The trial in this process. `record` grows as it goes, so that a failure keeps what was measured before it."""

    def __init__(self, trial: TrialSpec, start: Start, rank: Rank, progress: ProgressFile) -> None:
        self.trial = trial
        self._start = start
        self._progress = progress
        self._losses: list[list[float]] = []
        self.record = RankRecord(
            trial_id=trial.trial_id,
            rank=rank.rank,
            local_rank=rank.local_rank,
            world_size=trial.world_size,
            hostname=rank.hostname,
            node=rank.node,
            pid=rank.pid,
            status=Status.CRASH,
            device_type="cpu",
            device_name=processor_name() or "cpu",
            backend=f"tf.distribute {trial.tf_strategy.value}",
            micro_batch_size=trial.micro_batch_size,
            notes=[NOTE, _ONE_GRAPH],
        )

    def run(self) -> None:
        """Run the whole trial; the record says completed only at its end."""
        self._strategy = make_strategy(self.trial)
        self._replicas = len(self._strategy.extended.worker_devices)
        self._tokens = self._start.tokens()
        self._progress.say("init", -1, always=True)
        self._memory = MemoryBook()
        try:
            with self._memory.phase(StepKind.FIRST, Phase.INIT), self._mark(Phase.INIT, -1, "first"):
                self._build()
            self._describe()
            self._train()
        finally:
            self.record.memory, self.record.process_memory = self._memory.rows, self._memory.process_rows
        self.record.losses = mean_over_replicas(self._strategy, np.array(self._losses, np.float32).T)
        self.record.status = Status.COMPLETED
        self._progress.say("done", self.trial.steps.total, always=True)

    def _build(self) -> None:
        with self._strategy.scope():
            self._model = make_model(self._start)
            self._model.set_values(self._start)
            self._optimizer = make_optimizer(self.trial)
            self._optimizer.build(self._model.trainable_variables)
        self._memory.named = variable_bytes(self._model, self._optimizer, self._replicas)
        self._step_graph = make_step(self._strategy, self._model, self._optimizer)

    def _describe(self) -> None:
        """What was built, into the record."""
        record, trial = self.record, self.trial
        counts: dict[str, int] = {}
        for name, variable in zip(self._start.parameters, self._model.trainable_variables, strict=True):
            component = component_of(name)
            counts[component] = counts.get(component, 0) + int(np.prod(variable.shape))
        total = sum(counts.values())
        record.parameters = ParameterTensor(total=total, trainable=total, by_component=counts)
        known = ParameterCounts.from_components(counts)
        per_token, record.flops_formula = model_flops_per_token(trial.model, trial.sequence_length, known)
        samples = trial.micro_batch_size * micro_batches_per_step(trial, record.rank) * self._replicas
        record.flops_per_step = None if per_token is None else per_token * samples * trial.sequence_length
        record.effective_config = {
            "optimizer": self._optimizer_config(),
            "tensorflow": {
                "strategy": type(self._strategy).__name__,
                "replicas_in_sync": self._strategy.num_replicas_in_sync,
                "replicas_in_this_process": self._replicas,
                "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads(),
            },
            "environment": running_in("tensorflow"),
        }

    def _optimizer_config(self) -> dict[str, Any]:
        said = {"optimizer": type(self._optimizer).__name__, "gradient_clipping": self._optimizer.largest_norm}
        for name in ("weight_decay", "beta_1", "beta_2"):
            said[name] = getattr(self._optimizer, name, None)
        return said

    def _train(self) -> None:
        """All steps; malloc is let loose, once, after those that memory is measured in."""
        is_loose = False
        for index, kind in enumerate(step_kinds(self.trial.steps)):
            if kind in _UNDER_LEDGER:
                self._watched_step(index, kind, _UNDER_LEDGER[kind])
                continue
            if self.record.batches[-1].kind == "memory" and not is_loose:
                is_loose = unpin_malloc()
            self._step(index, kind)

    def _watched_step(self, index: int, kind: str, step: StepKind) -> None:
        with self._memory.phase(step, Phase.STEP):
            self._step(index, kind)
        self.record.batches[-1].device_peak_bytes = self._memory.peak_bytes(step, Phase.STEP)

    def _step(self, index: int, kind: str) -> None:
        """One optimizer step. The batch is on the devices before the step's clock starts."""
        batch, rate = self._batch(index), self._start.learning_rates[index]
        self._optimizer.learning_rate.assign(rate)
        with self._mark(Phase.STEP, index, kind):
            begun = time.perf_counter()
            losses = [float(one) for one in self._strategy.experimental_local_results(self._step_graph(batch))]
            step_s = time.perf_counter() - begun
        if kind == "timed":
            self.record.step_times.append(StepTime(step_s=step_s, forward_s=None, backward_s=None, optimizer_s=None))
        self._losses.append(losses)
        self.record.learning_rates.append(float(tf.convert_to_tensor(self._optimizer.learning_rate)))
        self.record.batches.append(StepBatch(kind=kind, tokens=self.trial.global_batch_tokens))
        self._progress.say(kind, index, resident_bytes())

    def _batch(self, index: int) -> Any:
        """The micro-batches of each replica of this process."""
        step, size = np.asarray(self._tokens[index]), self.trial.micro_batch_size
        replicas = self._strategy.num_replicas_in_sync

        def of(context: Any) -> Any:
            return tf.constant(samples_of(step, context.replica_id_in_sync_group, replicas, size))

        return self._strategy.experimental_distribute_values_from_function(of)

    @contextmanager
    def _mark(self, phase: Phase, index: int, kind: str) -> Iterator[None]:
        start = time.time()
        yield
        self.record.marks.append(PhaseMark(step_index=index, kind=kind, phase=phase, start_s=start, end_s=time.time()))
