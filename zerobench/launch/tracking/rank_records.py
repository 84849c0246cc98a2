"""Write the records of a tracked rank, and on rank 0 those of the trial."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch

from zerobench.common.units import counted
from zerobench.common.vocabulary import Status
from zerobench.config.derived.flops import model_flops_per_token
from zerobench.config.models.parameters import ParameterCounts
from zerobench.config.trial.backward import BackwardPass, backward_pass
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.machine.tried_versions import untried
from zerobench.launch.run.trial_record import trial_record, write_record
from zerobench.launch.tracking.agreement import Agreement
from zerobench.launch.tracking.own_trial import LEDGER_ALONE, laid_out, lay_out_own_run, run_of, watched_folder
from zerobench.launch.tracking.step_phases import StepPhases
from zerobench.launch.tracking.work import Work
from zerobench.rank.ledger.course import write_courses
from zerobench.rank.ledger.device import Device
from zerobench.rank.ledger.engine_config import acting_versions, count_parameters_built, weights_built
from zerobench.rank.nvml.sampler import Sampler
from zerobench.records.folder import TrialFolder, write_whole
from zerobench.records.progress import Rank
from zerobench.records.records import ContextMemory, Failure, MemoryCourse, NvmlSummary, ParameterTensor, RankRecord

PEERS_S = 10.0
"""Seconds rank 0 waits for the other ranks' records before it writes the trial's."""
FAILED_PEERS_S = 2.0
"""The same if this rank failed: its peers may hang."""
_PAUSE_S = 0.02
_SAMPLER_START_S = 10.0
_PINNED = "MALLOC_MMAP_THRESHOLD_"

_taken: set[Path] = set()
"""Watchers' folders used by a tracker of this process: a second engine gets its own run."""


def make_folder(reports: Path, trial: TrialSpec) -> TrialFolder:
    """On rank 0, return the watcher's folder if there is one and it is free, else that of a new run.

    Raises UserError if it cannot be written.
    """
    folder = watched_folder()
    if folder is not None and folder.path not in _taken:
        _taken.add(folder.path)
        return folder
    run = lay_out_own_run(reports, trial, {"name": trial.trial_id, "tracked": True}, [])
    return run.trial(trial.trial_id)


@dataclass(frozen=True)
class WorkFacts:
    """Facts about a training for its records; they outlive its objects, which are the script's."""

    trial: TrialSpec
    given: dict[str, Any]
    effective_config: dict[str, Any]
    departures: list[str]
    context: ContextMemory | None
    parameters: ParameterTensor
    backward: BackwardPass | None
    versions: dict[str, str]

    @classmethod
    def read(cls, work: Work, trial: TrialSpec) -> Self:
        """Read the facts off the objects; `trial` is the work's own, on its ranks."""
        parameters = count_parameters_built(work.module)
        return cls(
            trial,
            work.given(),
            work.effective_config(),
            work.departures(trial.world_size, parameters.total),
            work.context(),
            parameters,
            backward_pass(weights_built(work.module)),
            acting_versions(work.module),
        )


@dataclass
class TrackedRank:
    """Results of a tracker so far."""

    folder: TrialFolder
    ranks_per_node: int
    rank: Rank
    trial: TrialSpec
    is_watched: bool
    swap_folder: str | None
    sampler: Sampler | None
    speaks: bool
    started_at_s: float = field(default_factory=time.time)
    status: Status = Status.COMPLETED
    failure: Failure | None = None
    notes: list[str] = field(default_factory=list)
    nameless: list[str] = field(default_factory=list)
    """Notes on unattributed bytes in the tracked steps."""
    measured: dict[str, Any] = field(default_factory=dict)
    """Fields of the rank's record, from the phases."""
    courses: list[MemoryCourse] = field(default_factory=list)
    sequence_lengths: set[int] = field(default_factory=set)
    facts: WorkFacts | None = None
    """The facts as last read."""

    @classmethod
    def begin(cls, agreed: Agreement, rank: Rank, work: Work, trial: TrialSpec) -> Self:
        """Return the trial in the agreed folder, whose spec this rank's watcher or rank 0 wrote; its name stays."""
        script, folder = trial.own, agreed.folder
        spec = TrialSpec.model_validate_json(folder.spec.read_bytes()) if folder.spec.exists() else None
        if spec is not None and spec.own is not None and script is not None:
            trial = trial.model_copy(update={"own": script.model_copy(update={"name": spec.own.name})})
        path = None if trial.nvme_path is None else f"{trial.nvme_path.rstrip('/')}/zero_stage_3"
        rank = replace(rank, node=agreed.node)
        tracked = cls(folder, agreed.ranks_per_node, rank, trial, watched_folder() == folder, path, None, agreed.speaks)
        tracked.sampler = tracked._start_sampler() if agreed.is_first_of_node else None
        if work.has_stepped:
            tracked.notes.append("tracked after the engine's first step, which creates the optimizer states")
        tracked.notes.append("step times start with the forward pass and exclude data loading")
        tracked.notes += untried()
        if _PINNED not in os.environ:
            tracked.notes.append("malloc is not pinned: RSS includes freed memory")
        return tracked

    def _start_sampler(self) -> Sampler | None:
        """Start one per node, unless the watcher's runs there."""
        if self.folder.nvml_summary(self.rank.node).exists():
            return None
        sampler = Sampler.start(self.folder, self.rank.node, uuids=None)
        sampler.wait_ready(_SAMPLER_START_S)
        return sampler

    def look_at(self, work: Work) -> WorkFacts:
        """Read the facts about the work now, or return the last ones if the script has deleted it."""
        if work.is_alive or self.facts is None:
            trial = work.trial(self.trial.trial_id, self.trial.steps, self.sequence_length)
            self.facts = WorkFacts.read(work, laid_out(trial, self.rank.world_size, self.ranks_per_node))
        return self.facts

    def take(self, steps: StepPhases) -> None:
        """Take the results of the tracked steps."""
        self.measured = {
            "step_times": steps.step_times,
            "marks": steps.marks.marks,
            "memory": steps.ledger.rows() + list(steps.nvme.rows.values()),
            "process_memory": steps.ledger.process_rows(),
            "device_memory": [] if steps.rows is None else list(steps.rows.rows.values()),
            "nvme": list(steps.nvme.traffic.values()),
            "host_peak": steps.ledger.host_peak,
            "step_trace": None if steps.order is None else steps.order.trace(),
        }
        if steps.order is not None and steps.order.problem is not None:
            self.note_once(f"the order of the step was not recorded: {steps.order.problem}")
        self.courses = steps.ledger.courses()
        for note in steps.ledger.notes:
            self.note_once(note)
        self.nameless = steps.ledger.unattributed_notes()

    def note_once(self, note: str) -> None:
        """Add a note unless it is there."""
        if note not in self.notes:
            self.notes.append(note)

    def note_batch(self, tensors: Iterable[torch.Tensor]) -> None:
        """Read the sequence length off a batch: its first matrix of integers."""
        shapes = (tuple(tensor.shape) for tensor in tensors if tensor.dim() == 2 and not tensor.is_floating_point())
        first = next(shapes, None)
        if first is not None:
            self.sequence_lengths.add(first[1])

    @property
    def all_notes(self) -> list[str]:
        """The notes, with those on the tracked steps."""
        lengths = sorted(self.sequence_lengths)
        differ = [f"the tracked batches differ in length: {lengths} tokens"] if len(lengths) > 1 else []
        return [*self.notes, *self.nameless, *differ]

    @property
    def sequence_length(self) -> int | None:
        """Tokens per sequence, if all tracked batches agree."""
        return next(iter(self.sequence_lengths)) if len(self.sequence_lengths) == 1 else None


def write_records(tracked: TrackedRank, work: Work, device: Device, *, is_last: bool = True) -> None:
    """Write this rank's record; the speaking rank also writes the description of the work and, without a watcher, the
    trial's record.

    Unless `is_last`, these are replaced later, if the process lives.
    """
    facts = tracked.look_at(work)
    trial = facts.trial
    # Unless `is_last`, these are replaced later, if the process lives.
    if tracked.speaks:
        write_whole(tracked.folder.spec, trial.model_dump_json(indent=1))
        write_whole(tracked.folder.ds_config, json.dumps(facts.given, indent=1))
    record = _rank_record(tracked, facts, device, [] if is_last else [LEDGER_ALONE])
    write_whole(tracked.folder.rank_record(tracked.rank.rank), record.model_dump_json())
    if tracked.speaks:
        write_courses(tracked.folder, record, tracked.courses)
    if tracked.sampler is not None and is_last:
        tracked.sampler.stop()
    if tracked.speaks and not tracked.is_watched:
        _write_trial(tracked, trial, [] if is_last else [LEDGER_ALONE])


def _rank_record(tracked: TrackedRank, facts: WorkFacts, device: Device, more_notes: Sequence[str]) -> RankRecord:
    trial, parameters = facts.trial, facts.parameters
    flops, formula = _flops(trial, parameters, facts.backward) if trial.knows("sequence_length") else (None, None)
    return RankRecord(
        trial_id=trial.trial_id,
        **asdict(tracked.rank),
        status=tracked.status,
        failure=tracked.failure,
        device_type=device.torch_device.type,
        device_name=device.name,
        device_uuid=device.uuid,
        device_capacity_bytes=device.capacity_bytes,
        backend=device.backend,
        context=facts.context,
        parameters=parameters,
        versions=facts.versions,
        micro_batch_size=trial.micro_batch_size,
        flops_per_step=flops,
        flops_formula=formula,
        **tracked.measured,
        effective_config=facts.effective_config,
        departures=facts.departures,
        notes=[*tracked.all_notes, *more_notes],
    )


def _flops(
    trial: TrialSpec, parameters: ParameterTensor, backward: BackwardPass | None
) -> tuple[float | None, str | None]:
    """Return model FLOPs per rank and optimizer step, and the formula's name."""
    counts = ParameterCounts.from_components(parameters.by_component)
    per_token, formula = model_flops_per_token(trial.model, trial.sequence_length, counts, backward)
    tokens = trial.micro_batch_size * trial.gradient_accumulation_steps * trial.sequence_length
    return (None, None) if per_token is None else (per_token * tokens, formula)


def _write_trial(tracked: TrackedRank, trial: TrialSpec, notes: Sequence[str]) -> None:
    """Wait briefly for the other ranks' records, then write the trial's.

    With `notes` on steps still to come it does not wait: the training goes on.
    """
    folder = tracked.folder
    patience_s = 0.0 if notes else PEERS_S if tracked.failure is None else FAILED_PEERS_S
    deadline = time.monotonic() + patience_s
    while len(folder.rank_records()) < trial.world_size and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
    ranks = [RankRecord.model_validate_json(path.read_bytes()) for path in folder.rank_records()]
    failed = next((rank for rank in ranks if rank.status is not Status.COMPLETED), None)
    outcome = (Status.COMPLETED, None) if failed is None else (failed.status, failed.failure)
    missing = trial.world_size - len(ranks)
    record = trial_record(
        trial,
        run_of(folder).run_id,
        outcome,
        trial.world_size,
        started_at_s=tracked.started_at_s,
        ended_at_s=time.time(),
        ranks_reported=len(ranks),
        nvml=read_nvml(folder),
        notes=[*notes, *([f"{counted(missing, 'rank')} unrecorded {patience_s:g} s after rank 0"] if missing else [])],
    )
    write_record(folder, record)


def read_nvml(folder: TrialFolder) -> list[NvmlSummary]:
    """Read the summaries of all nodes' samplers."""
    return [NvmlSummary.model_validate_json(path.read_bytes()) for path in folder.nvml_summaries()]
