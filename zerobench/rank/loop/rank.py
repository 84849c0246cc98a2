"""Runs one rank's trial from start to end: build, first step, memory steps, timed steps, record."""

import itertools
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

import torch

from zerobench.common.environments import running_in
from zerobench.common.vocabulary import Phase, Place, Status, StepKind
from zerobench.config.deepspeed import kernels
from zerobench.config.deepspeed.build import batch_keys
from zerobench.config.derived.batch import micro_batches_per_step, micro_batches_read, model_parallel_size
from zerobench.config.derived.flops import model_flops_per_token
from zerobench.config.derived.roles import Role, num_loss_ranks, role_of
from zerobench.config.derived.step_plan import UNDER_LEDGER, PlannedStep, leads_to_memory, plan_steps, unsettled_reason
from zerobench.config.derived.strategy import strategy_info
from zerobench.config.models.parameters import ParameterCounts
from zerobench.config.trial.backward import backward_pass
from zerobench.config.trial.trial import Compile, CrossEntropy, TrialSpec
from zerobench.estimate.memory.deepspeed.departures import departures
from zerobench.rank.ledger.course import write_courses
from zerobench.rank.ledger.device import Device
from zerobench.rank.ledger.engine_config import acting_versions, count_parameters_built, weights_built
from zerobench.rank.ledger.held import REFUSED
from zerobench.rank.ledger.host import resident_bytes, unpin_malloc
from zerobench.rank.ledger.ledger import Ledger
from zerobench.rank.ledger.reachable import walk_reachable
from zerobench.rank.ledger.recorder import Marks, MemoryPhases, PlainPhases, TimedPhases
from zerobench.rank.loop.checkpoint_saves import Checkpoints
from zerobench.rank.loop.weight_files import WeightFiles
from zerobench.rank.nvml.nvml import DeviceReader
from zerobench.rank.strategies import make_strategy
from zerobench.rank.strategies.base import Job, Strategy
from zerobench.rank.training.checkpoints import TorchPeers
from zerobench.rank.training.communication import watched
from zerobench.rank.training.compilation import CompilationWatch, eagerly
from zerobench.rank.training.cross_entropy import effective_loss
from zerobench.rank.training.grad_norms import GradNorms
from zerobench.rank.training.model import DTYPES, prepare_model
from zerobench.rank.training.schedule import planned_rate
from zerobench.rank.training.weights import fill_weights
from zerobench.rank.worlds import make_world
from zerobench.records.folder import TrialFolder
from zerobench.records.progress import ProgressFile, Rank
from zerobench.records.records import ContextMemory, RankRecord, StepBatch
from zerobench.records.swap_folder import swap_folder

_UNKNOWN_PROCESS = (
    "batch_ramp: the steady step runs after timed steps, when malloc keeps freed memory: rest_of_process "
    "and resident bytes are not available for it"
)


class RankRun:
    """The trial on this rank. `record` grows as it runs, so that a failure keeps earlier measurements."""

    def __init__(self, trial: TrialSpec, folder: TrialFolder, rank: Rank, progress: ProgressFile) -> None:
        self.trial = trial
        self.folder = folder
        self.rank = rank
        self.world = make_world(trial)
        self.marks = Marks()
        self._plain = PlainPhases(self.marks)
        self._is_loose = False
        self._is_built = False
        self.device: Device | None = None
        self._progress = progress
        self._losses: list[torch.Tensor] = []
        clipping = trial.hyperparameters.gradient_clipping
        self._norms = GradNorms(clipping, are_kept=self.world.trains and not self.world.is_alone)
        self.record = RankRecord(
            trial_id=trial.trial_id,
            **asdict(rank),
            role=role_of(trial, rank.rank),
            status=Status.CRASH,
            device_type="unknown",
            device_name="unknown",
            micro_batch_size=trial.micro_batch_size,
        )

    def run(self) -> None:
        """Run the whole trial; the record's status becomes completed only at its end."""
        device = self._open_device()
        ds_config = self._read_ds_config()
        self._announce_compilation(ds_config, device)
        self._progress.say("join", -1, always=True)
        reader = self._join(device)
        files = WeightFiles(self.trial, self.folder.weights, self.world)
        files.write(self.rank.rank, device.torch_device)
        with self.world.active():
            strategy = make_strategy(self._job(device, ds_config))
            self._look(strategy, device, reader)
            self._checkpoints = Checkpoints(self.trial, self.folder, self.rank, TorchPeers(device), self.record)
            try:
                with files.reading(self.record, self._ledger.counter):
                    self._build(strategy, ds_config)
                self._progress.say("training", -1, always=True)
                self._checkpoints.load(strategy)
                self._train(strategy, device)
            finally:
                self._collect(strategy)
            self._gather_losses()
        self.record.notes += self._norms.notes()
        self.record.compilation = self._compilation.record()
        self.record.notes += self._compilation.notes()
        self.record.status = Status.COMPLETED
        self._progress.say("done", len(plan_steps(self.trial)), always=True)

    def _look(self, strategy: Strategy, device: Device, reader: DeviceReader | None) -> None:
        """Set up everything that observes memory."""
        world = self.world
        self._nvme = world.nvme(swap_folder(self.trial, self.folder), self.rank.rank)
        self._ledger = Ledger(
            device.torch_device,
            lambda: itertools.chain(strategy.walk() if self._is_built else walk_reachable(), world.walk()),
            world.counter,
            in_own_process=world.trains,
            device_totals=world.device_totals,
        )
        self._ledger.tell_host = self._progress.tell_host
        self._rows = world.device_rows(device, reader)
        self._memory = MemoryPhases(
            self._ledger, device, self.marks, self._nvme, world.traffic, self._rows, world.settle
        )

    def _open_device(self) -> Device:
        self.device = device = self.world.open_device(self.rank)
        device.held = lambda: self._ledger.held(self.marks.phase)
        if self.world.trains:  # otherwise host memory that is refused is not the trial's
            device.host_standing = lambda: self._ledger.host_standing(self.marks.phase, REFUSED)
        device.snapshot = self.folder.memory_snapshot(self.rank.rank)
        device.watch_refusals()
        self._progress.device_name, self._progress.capacity_bytes = device.name, device.capacity_bytes
        self.record.device_type = device.torch_device.type
        self.record.device_name = device.name
        self.record.device_uuid = device.uuid
        self.record.device_capacity_bytes = device.capacity_bytes
        self.record.backend = device.backend
        return device

    def _read_ds_config(self) -> dict[str, Any]:
        path = self.folder.ds_config
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        is_short = config and self.trial.prediction.micro_batches is not None
        return config | batch_keys(self.trial) if is_short else config

    def _announce_compilation(self, ds_config: dict[str, Any], device: Device) -> None:
        needed = kernels.needed(ds_config, is_cuda=device.is_cuda) if self.world.trains else ()
        if needed and device.is_cuda:
            self.record.notes += kernels.name_architectures(os.environ)
        if needed and (names := kernels.missing(needed, os.environ)):
            self._progress.say("compile", -1, always=True)
            self.record.notes.append(f"compiled DeepSpeed's kernels at first use: {', '.join(names)}")

    def _join(self, device: Device) -> DeviceReader | None:
        """Create the CUDA context, then the collectives' buffers, with a driver reading after each."""
        reader = self.world.reader(device)
        before = _used(reader)
        if device.is_cuda:
            torch.cuda.set_device(device.torch_device)
            torch.ones(1, device=device.torch_device)
            device.synchronize()
        with_context, torch_bytes = _used(reader), _reserved(device)
        self.world.join(self.rank, device)
        self.record.context, sources = self.world.context_memory()
        self.record.notes += sources
        if device.is_cuda and self.record.context is None:
            self.record.context = ContextMemory(
                before_bytes=before,
                context_bytes=_minus(with_context, before, torch_bytes),
                collectives_bytes=_minus(_used(reader), with_context, _reserved(device) - torch_bytes),
            )
        return reader

    def _job(self, device: Device, ds_config: dict[str, Any]) -> Job:
        trial, seed, dtype = self.trial, self.trial.hyperparameters.seed, DTYPES[self.trial.precision]
        return Job(
            trial=trial,
            device=device,
            ds_config=ds_config,
            shape_model=prepare_model(trial, device.torch_device, self.world.attention, self.folder.weights),
            fill_weights=lambda model: fill_weights(
                model, seed, self.world.generator, dtype, is_loaded=trial.is_loaded, widens=trial.widens_adapters
            ),
            heard=self.world.traffic.collective,
            norms=self._norms,
        )

    def _build(self, strategy: Strategy, ds_config: dict[str, Any]) -> None:
        self._progress.say("init", -1, always=True)
        with self._ledger.tracking(), self._memory.phase(Phase.INIT):
            strategy.build()
            self._is_built = True
        self._tell_peak()
        record, trial = self.record, self.trial
        record.parameters = strategy.whole_parameters or count_parameters_built(strategy.module)
        record.versions = acting_versions(strategy.module)
        record.effective_config = strategy.effective_config()
        if trial.cross_entropy is not CrossEntropy.FULL:
            record.effective_config["cross_entropy"] = effective_loss(strategy.module)
        record.notes += strategy.notes
        if (environment := strategy_info(trial.strategy).environment) is not None:
            record.effective_config["environment"] = running_in(environment)
        counts = ParameterCounts.from_components(record.parameters.by_component)
        backward = backward_pass(weights_built(strategy.module))
        per_token, record.flops_formula = model_flops_per_token(trial.model, trial.sequence_length, counts, backward)
        tokens = trial.micro_batch_size * micro_batches_per_step(trial, record.rank) * trial.sequence_length
        if per_token is not None and role_of(trial, record.rank) is Role.WORKER:
            record.flops_per_step = per_token * tokens / model_parallel_size(trial)
        if ds_config:
            built = record.parameters
            record.departures = departures(
                ds_config, trial.world_size, built.total, trial.optimizer, num_trained=built.trainable
            )

    def _train(self, strategy: Strategy, device: Device) -> None:
        """Run the planned steps; without values, only tracked steps and those that settle the strategy."""
        vocab_size = int(strategy.module.config.vocab_size)  # type: ignore[union-attr, arg-type] # transformers is untyped
        data = self.world.micro_batches(self.rank, vocab_size)
        planned = [step for at, step in enumerate(plan_steps(self.trial)) if self._takes(at, step.kind)]
        if self.trial.batch_ramp is not None and self.world.trains:
            self.record.notes.append(_UNKNOWN_PROCESS)
        if (unsettled := unsettled_reason(self.trial)) is not None:
            self.record.notes.append(unsettled)
        self._timed = TimedPhases(device, self.marks)
        self._compilation = CompilationWatch(self.trial, device)
        kinds = [step.kind for step in planned]
        numbers = range(len(planned))
        for (kind, leads), indices in itertools.groupby(numbers, lambda at: (kinds[at], leads_to_memory(kinds, at))):
            self._begin(kind)
            with self._step_context(kind, strategy, leads_to_memory=leads):
                for index in indices:
                    self._step(strategy, device, data, index, planned[index])

    @contextmanager
    def _step_context(self, kind: str, strategy: Strategy, *, leads_to_memory: bool) -> Iterator[None]:
        """Context of steps of a kind."""
        with ExitStack() as stack:
            if kind in UNDER_LEDGER:
                stack.enter_context(eagerly(self.trial))
                stack.enter_context(self._ledger.tracking(strategy.module))
            elif leads_to_memory and self.world.trains and self.trial.compile is Compile.NONE:
                stack.enter_context(self._ledger.watching(strategy.module))
            yield

    def _takes(self, index: int, kind: str) -> bool:
        """True if this world runs such a step: a rank alone has nothing to communicate."""
        if kind == "communication":
            return self.world.trains and not self.world.is_alone
        settles = index < strategy_info(self.trial.strategy).settled_after_steps
        return self.world.trains or kind in UNDER_LEDGER or settles

    def _begin(self, kind: str) -> None:
        """Begin steps of another kind: timed ones run without the allocator's book and with malloc unpinned.

        Malloc is unpinned once, after the first memory steps.
        """
        if kind == "memory":
            self.world.settle()
            self._memory.kind = StepKind.STEADY
        elif self._memory.kind is StepKind.STEADY and not self._is_loose:
            self._is_loose = True
            self._checkpoints.is_malloc_pinned = not unpin_malloc()
            self._ledger.leave_process()
        if kind in {"timed", "communication"}:
            self._ledger.rest()

    def _step(
        self, strategy: Strategy, device: Device, data: Iterator[torch.Tensor], index: int, planned: PlannedStep
    ) -> None:
        """Run one optimizer step. The batch is on the device before the step's clock starts."""
        self.marks.step_index, self.marks.kind = index, planned.kind
        count = micro_batches_read(self.trial, self.rank.rank, planned.tokens)
        batches = [next(data).to(device.torch_device) for _ in range(count)]
        if index < self._checkpoints.position.step:
            return  # an earlier launch took this step; reading its data keeps the order
        self._checkpoints.die_if_due(index, lambda: self._collect(strategy))
        if planned.kind == "memory":  # the last of several is reported
            for kept in (self._ledger, self.world.traffic, self._nvme):
                kept.forget(StepKind.STEADY)
        if planned.kind in UNDER_LEDGER:
            self._ledger.name_inputs(batches)
        rate = planned_rate(self.trial, planned)
        self._norms.begin(planned.kind)
        if planned.kind == "timed":
            with self._compilation.timed_step(), self._timed.step(self.record.step_times):
                loss = strategy.step(batches, rate, self._timed)
            if not self.world.is_alone:
                self.record.step_times[-1].wait_s = self._waited(strategy)
                self._progress.tokens_per_s = planned.tokens / self.record.step_times[-1].step_s
        elif planned.kind == "communication":
            with watched(device, self.record.communication):
                loss = strategy.step(batches, rate, self._plain)
        else:
            loss = strategy.step(batches, rate, self._memory if planned.kind in UNDER_LEDGER else self._plain)
        self._losses.append(loss)
        self._note_step(strategy, planned)
        self._progress.say(planned.kind, index, device.memory_bytes() or resident_bytes())
        if self._checkpoints.is_due(index + 1):
            self._progress.say("save", index, always=True)
            self._gather_losses()
            self._checkpoints.save(strategy, index + 1, self.record.losses)

    def _note_step(self, strategy: Strategy, planned: PlannedStep) -> None:
        rate = strategy.learning_rate()
        self.record.learning_rates += [] if rate is None else [rate]
        kind = UNDER_LEDGER.get(planned.kind)
        if kind is not None:
            self._tell_peak()
        peak = None if kind is None else self._ledger.peak_bytes(kind, Place.DEVICE)
        self.record.batches.append(StepBatch(kind=planned.kind, tokens=planned.tokens, device_peak_bytes=peak))

    def _tell_peak(self) -> None:
        """Put the ledger's latest peak into the next progress message."""
        self._progress.peak_by_category = self._ledger.parts_at_peak(self._memory.kind, Place.DEVICE)

    def _waited(self, strategy: Strategy) -> float | None:
        """Seconds of the last timed step in which the rank waited for others; None if unknown."""
        if not strategy.waits_between_phases:
            return strategy.wait_s
        time = self.record.step_times[-1]
        in_phases = [time.forward_s, time.backward_s, time.optimizer_s]
        return max(0.0, time.step_s - sum(seconds for seconds in in_phases if seconds is not None))

    def _collect(self, strategy: Strategy) -> None:
        """Put the results of all phases into the record, also after a failure."""
        record = self.record
        record.context = self.world.outside_torch() or record.context
        record.marks = self.marks.marks
        record.memory = self._ledger.rows() + list(self._nvme.rows.values())
        record.process_memory = self._ledger.process_rows()
        if self.trial.prediction.host_memory_bytes is not None:
            record.host_peak = self._ledger.host_peak
        if self.rank.rank in {0, self.trial.prediction.rank}:
            write_courses(self.folder, record, self._ledger.courses())
        record.device_memory = [] if self._rows is None else list(self._rows.rows.values())
        record.collectives = self.world.traffic.collectives()
        record.staleness_steps = None if self.world.is_alone else strategy.staleness_steps
        record.flops = self.world.traffic.flops()
        record.nvme = list(self._nvme.traffic.values())
        record.step_trace = self.world.traffic.trace()
        record.notes += [*self._ledger.notes, *self._ledger.unattributed_notes()]

    def _gather_losses(self) -> None:
        """Average the losses over the ranks after all steps and at each checkpoint, so that no step waits for it."""
        losses = torch.stack([loss.float() for loss in self._losses])
        before = self._checkpoints.position.losses
        self.record.losses = before + self.world.mean_over_ranks(losses, num_loss_ranks(self.trial))
        norms = self._norms.values()
        self.record.grad_norms = [*[None] * len(before), *norms] if norms else []


def _used(reader: DeviceReader | None) -> int | None:
    reading = None if reader is None else reader.read(power=False)
    return None if reading is None else reading.used_bytes


def _reserved(device: Device) -> int:
    return torch.cuda.memory_reserved(device.torch_device) if device.is_cuda else 0


def _minus(after: int | None, before: int | None, torch_bytes: int) -> int | None:
    return None if after is None or before is None else after - before - torch_bytes
