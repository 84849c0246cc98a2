"""Changes that make a trial of CPU ranks fit its node: all that their tensors hold is the host's, so none is moved.

No time is expected of CPU ranks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from zerobench.app.search.changes import ChangeNames, changed_trials
from zerobench.app.search.predict import predict
from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Category, Place, StepKind
from zerobench.config.derived.cluster import Cluster
from zerobench.config.derived.machine import Accelerator, Machine
from zerobench.config.hardware.hardware import Gpu
from zerobench.config.rules.rules import find_skip
from zerobench.config.rules.situation import Situation
from zerobench.config.sweep.expand import PlannedTrial
from zerobench.config.sweep.plan import STEPS, document
from zerobench.config.trial.trial import OFFLOADS, Evidence, PredictionSpec, TrialSpec
from zerobench.launch.run.observer import Observer
from zerobench.records.records import RankRecord
from zerobench.records.store import load_run
from zerobench.records.trials import Trial, ended_trials, is_whole
from zerobench.report.explain.changes import ChangeOutcome
from zerobench.report.explain.topic import Topic, says

_NO_TENSORS = {Category.TOTAL, Category.REST_OF_PROCESS}


def runs_on_cpu(trial: Trial) -> bool:
    """Whether its ranks train on CPUs."""
    return trial.spec.prediction.gpu is None and {rank.device_type for rank in trial.ranks} <= {"cpu"}


@dataclass(frozen=True)
class Room:
    """What a trial has to fit: the limit that refused."""

    name: str
    size_bytes: int | None
    ranks: int
    """That share it."""
    beside_bytes: int
    """What each rank takes of it beside tensors."""

    def needed_bytes(self, made: Trial) -> int | None:
        """Its ranks times the most that one holds at a time, on the device, which is the host, and beside it."""
        peaks = [_peak(rank, step) for rank in made.ranks for step in StepKind]
        return self.ranks * (max(peaks) + self.beside_bytes) if peaks else None


def room_of(trial: Trial, node_bytes: int | None) -> Room:
    """A rank's addresses where those were refused (`ulimit -v`), else the memory of the node or its control group."""
    standing = trial.record.failure.host_standing if trial.record.failure is not None else None
    refused = standing is not None and not standing.is_last_account
    if standing is not None and refused and standing.address_limit_bytes and standing.address_space_bytes:
        beside = max(0, standing.address_space_bytes - standing.tensor_bytes)
        return Room("a rank's address space (ulimit -v)", standing.address_limit_bytes, 1, beside)
    return Room("a node's memory", node_bytes, trial.spec.gpus_per_node, _beside_tensors(trial))


@dataclass(frozen=True)
class ChangesOnCpu:
    """Memory that a trial of CPU ranks needs, unchanged and with each change."""

    unchanged: ChangeOutcome
    changes: Sequence[ChangeOutcome]
    room: Room


SimulatedChange = tuple[ChangeNames, Trial | None]
"""What was changed, and what became of it; None of what did not complete."""


def changes_on_cpu(trial: Trial, reports: Path, observer: Observer) -> list[SimulatedChange]:
    """`trial` itself, and each change of it, simulated on CPU ranks."""
    wanted = list(_without_moves(trial.spec, reports))
    machine = Machine(accelerator=Accelerator.CPU, num_nodes=trial.spec.num_nodes, cpu_cores=trial.spec.gpus_per_node)
    planned = []
    for _, spec in wanted:
        asked = _on_cpu(spec)
        planned.append(PlannedTrial(trial=asked, skipped=find_skip(Situation(asked, machine, None))))
    sweep = document(f"changes-{trial.spec.model.name}", planned)
    run = load_run(predict(planned, sweep, reports, observer).whole().path)
    known = {ended.record.trial_id: ended for ended in ended_trials(run) if is_whole(ended)}
    return [(words, known.get(item.trial.trial_id)) for (words, _), item in zip(wanted, planned, strict=True)]


def judged_on_cpu(trial: Trial, simulated: Sequence[SimulatedChange], node_bytes: int | None) -> ChangesOnCpu:
    """Judge `trial` and each change of it against the memory that was refused."""
    room = room_of(trial, node_bytes)
    tried = []
    for words, made in simulated:
        needed = None if made is None else room.needed_bytes(made)
        fits = needed is not None and (room.size_bytes is None or needed <= room.size_bytes)
        tried.append(ChangeOutcome(words, fits, None, needed, on_cpu=True, on_host=room.name))
    return ChangesOnCpu(tried[0], tried[1:], room)


def unchanged_on_cpu(unchanged: ChangeOutcome, room: Room) -> list[Topic]:
    """What the trial needs as it is."""
    if unchanged.host_node_bytes is None:
        return []
    size = "" if room.size_bytes is None else f", limited to {format_bytes(room.size_bytes)}"
    verdict = "fits" if unchanged.fits else "does not fit"
    lines = says(f"Needs {format_bytes(unchanged.host_node_bytes)} of {room.name}{size}: {verdict}.")
    return [Topic("Unchanged, predicted", lines, {"host_node_bytes": unchanged.host_node_bytes})]


def _without_moves(trial: TrialSpec, reports: Path) -> Iterator[tuple[ChangeNames, TrialSpec]]:
    """The trial, and those changes that move nothing to the host, where it is already."""
    nowhere = Cluster(Gpu(name="cpu", source="none"), trial.num_nodes, trial.gpus_per_node)
    for words, made in changed_trials(trial, nowhere, reports):
        if all(getattr(made, name) is getattr(trial, name) for name in OFFLOADS):
            yield words, made


def _on_cpu(spec: TrialSpec) -> TrialSpec:
    asked = {"steps": STEPS, "repeat": 0, "checkpoint": None}
    there = {"evidence": Evidence.SIMULATED, "prediction": PredictionSpec(rank=spec.prediction.rank)}
    return spec.model_copy(update=asked | there)


def _peak(rank: RankRecord, step: StepKind) -> int:
    """Device and host within one phase, each at its own peak."""
    phases: dict[str, int] = {}
    for row in rank.memory:
        if row.step is step and row.category not in _NO_TENSORS and row.place is not Place.NVME:
            phases[row.phase] = phases.get(row.phase, 0) + (row.at_peak_bytes or 0)
    return max(phases.values(), default=0)


def _beside_tensors(trial: Trial) -> int:
    """The rest of a rank's process, by the last that was seen of it: Python, libraries, what malloc keeps."""
    rests = [row.live_bytes for rank in trial.ranks for row in rank.memory if row.category is Category.REST_OF_PROCESS]
    standing = trial.record.failure.host_standing if trial.record.failure is not None else None
    seen = 0 if standing is None else standing.by_category.get(Category.REST_OF_PROCESS, 0)
    return max([seen, *rests])
