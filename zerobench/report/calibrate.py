"""Turns what a run on GPUs measured into a calibration file, which predictions on such GPUs then use.

Per model of GPU and world size, because NCCL's buffers depend on the number of ranks: the CUDA context with a step's
kernels, NCCL's buffers and the host memory of a rank that no tensor holds. Solo trials are real processes on real GPUs,
so their context and their host memory count; their collectives move nothing and make no buffers, so those do not.

And per model of GPU by how much its measured steps took longer than the time model expects of them, and how much the
trials differ in that. With the spread of the published runs as one trial more, so that a single trial is no certainty.
Where all timed trials are solo ones, that is said of their passes without communication: one GPU tells of computing.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from zerobench.errors import UserError
from zerobench.folder import write_whole
from zerobench.records import Category, ContextMemory, Place, RankRecord, StepKind
from zerobench.report.figures.predicted_speed import gpu_of, usual_cluster
from zerobench.report.speed import speed_of
from zerobench.report.step_time.expected import uncalibrated_step
from zerobench.report.trials import Trial
from zerobench.spec.hardware import Gpu
from zerobench.spec.overheads import CALIBRATION_VARIABLE, CalibratedGpu, CalibratedSteps, Calibration, Spread
from zerobench.spec.trial import Evidence
from zerobench.store import Run, load_run
from zerobench.timing.rates import rates_of
from zerobench.timing.step import ExpectedStep
from zerobench.units import counted

_PACKAGES = ("zerobench", "python", "torch", "deepspeed", "transformers")
_LIBRARIES = ("nvidia-nccl-", "nvidia-cuda-runtime")


@dataclass
class _Readings:
    """What the ranks on one model of GPU read, in bytes."""

    num_ranks: int = 0
    context: list[int] = field(default_factory=list)
    collectives: list[int] = field(default_factory=list)
    rest_of_process: list[int] = field(default_factory=list)

    def add(self, rank: RankRecord, evidence: Evidence) -> None:
        self.num_ranks += 1
        if rank.context is not None:
            self.context += _known(_context_bytes(rank, rank.context))
            self.collectives += _known(rank.context.collectives_bytes) if evidence is Evidence.MEASURED else []
        self.rest_of_process += _known(_rest_of_process_bytes(rank))


def _context_bytes(rank: RankRecord, read: ContextMemory) -> int | None:
    """What the rank's process held outside torch, less NCCL's first communicator: more than the context took when it
    was made, since CUDA loads kernels when they are first launched and engines make communicators of their own.
    """
    known = read.collectives_bytes or 0
    later = [
        row.nvml_process_bytes - row.reserved_bytes - known
        for row in rank.device_memory
        if row.nvml_process_bytes is not None
    ]
    return None if read.context_bytes is None else max([read.context_bytes, *later])


def calibration_of(run: Run) -> Calibration:
    """The overheads that the ranks of `run` measured on GPUs, with the versions they ran with.

    Raises UserError: no rank of it ran on a GPU, or none could read the driver.
    """
    readings: dict[tuple[str, int], _Readings] = {}
    steps: dict[tuple[str, bool], list[_Step]] = {}
    num_trials = 0
    for trial in run.trials():
        num_trials += 1
        if (step := _step(trial)) is not None:
            steps.setdefault((step.gpu.name, step.of_passes), []).append(step)
        if trial.spec.evidence not in {Evidence.MEASURED, Evidence.SOLO}:
            continue
        for rank in trial.ranks:
            if rank.device_type == "cuda":
                key = (rank.device_name, trial.spec.world_size)
                readings.setdefault(key, _Readings()).add(rank, trial.spec.evidence)
    if not readings:
        raise UserError(
            f"RUN: {run.run_id}: none of its {counted(num_trials, 'trial')} ran on a GPU; calibrate needs one that did"
        )
    if not steps and not any(reading.context for reading in readings.values()):
        raise UserError(f"RUN: {run.run_id}: CUDA context size not recorded on its GPU ranks; {_why_none(run)}")
    gpus = tuple(_calibrated(gpu, size, reading) for (gpu, size), reading in sorted(readings.items()))
    whole = {gpu for gpu, of_passes in steps if not of_passes}
    timed = tuple(
        _calibrated_steps(timings)
        for (gpu, of_passes), timings in sorted(steps.items())
        if not (of_passes and gpu in whole)
    )
    return Calibration(run_id=run.run_id, versions=_versions(run.environment), gpus=gpus, steps=timed)


class _Step(NamedTuple):
    """A measured step."""

    gpu: Gpu
    of_passes: bool
    """Of a rank that ran alone."""
    expected: ExpectedStep
    log_ratio: float
    """Of the measured time over the expected."""


def _step(trial: Trial) -> _Step | None:
    """None of what no time is expected of, and of what was not measured."""
    gpu, speed, of_passes = gpu_of(trial), speed_of(trial), trial.spec.evidence is Evidence.SOLO
    if trial.spec.evidence not in {Evidence.MEASURED, Evidence.SOLO} or gpu is None or speed is None:
        return None
    expected = uncalibrated_step(trial, gpu, usual_cluster(trial.spec, gpu).links)
    if expected is None:
        return None
    if not of_passes:
        return _Step(gpu, of_passes, expected, math.log(speed.step_time_s_median / expected.step_s))
    if not speed.forward_s or not speed.backward_s:
        return None
    passes_s = expected.compute_s + expected.exposed_communication_s  # copies of offload, which nothing runs beside
    return _Step(gpu, of_passes, expected, math.log((speed.forward_s + speed.backward_s) / passes_s))


def _calibrated_steps(steps: Sequence[_Step]) -> CalibratedSteps:
    gpu, logs = steps[0].gpu, [step.log_ratio for step in steps]
    middle, known = statistics.fmean(logs), rates_of(gpu)[0].spread
    spread = math.sqrt((sum((log - middle) ** 2 for log in logs) + known**2) / len(logs))
    shared = [
        words for words in steps[0].expected.assumptions if all(words in each.expected.assumptions for each in steps)
    ]
    return CalibratedSteps(
        gpu=gpu.name,
        num_trials=len(logs),
        factor=math.exp(middle),
        spread=round(spread, 4),
        covered=tuple(shared),
        of_passes=steps[0].of_passes,
    )


def write_calibration(run_path: Path, out: Path) -> Calibration:
    """Write the calibration of the run in folder `run_path` to the file `out`, whole or not at all.

    Raises UserError: as `calibration_of`; `run_path` is no run; `out` cannot be written.
    """
    calibration = calibration_of(load_run(run_path))
    try:
        write_whole(out, calibration_text(calibration))
    except OSError as error:
        raise UserError(f"--out: {out}: {error.strerror or error}") from None
    return calibration


def calibration_text(calibration: Calibration) -> str:
    """The YAML of a calibration file, which begins by saying what it is for."""
    head = (
        f"# CUDA context, NCCL memory and step times, measured in run {calibration.run_id}. Predictions use it "
        f"where\n# {CALIBRATION_VARIABLE} names this file. Bytes; rest_of_process is host memory.\n"
    )
    return head + yaml.safe_dump(calibration.model_dump(mode="json"), sort_keys=False, width=110)


def _calibrated(gpu: str, world_size: int, readings: _Readings) -> CalibratedGpu:
    return CalibratedGpu(
        gpu=gpu,
        world_size=world_size,
        num_ranks=readings.num_ranks,
        context_bytes=_spread(readings.context),
        collectives_bytes=_spread(readings.collectives),
        rest_of_process_bytes=_spread(readings.rest_of_process),
    )


def _spread(values: list[int]) -> Spread | None:
    if not values:
        return None
    return Spread(median=round(statistics.median(values)), min=min(values), max=max(values))


def _known(value: int | None) -> list[int]:
    return [] if value is None else [value]


def _rest_of_process_bytes(rank: RankRecord) -> int | None:
    """The most resident memory that no tensor held at the end of a phase of the steady state."""
    held = (row for row in rank.memory if row.step is StepKind.STEADY and row.place is Place.HOST)
    return max((row.live_bytes for row in held if row.category is Category.REST_OF_PROCESS), default=None)


def _why_none(run: Run) -> str:
    """What the samplers gave as reason for reading nothing."""
    summaries: Iterable[Any] = (summary for trial in run.trials() for summary in trial.record.nvml)
    reason = next((summary.reason for summary in summaries if summary.reason), None)
    return f"NVML: {reason}" if reason else "NVML gives no reason"


def _versions(environment: Mapping[str, Any]) -> dict[str, str]:
    """The versions that the figures depend on; those that the environment does not tell are left out."""
    packages = environment.get("versions") or {}
    kept = {name: value for name, value in packages.items() if name in _PACKAGES or name.startswith(_LIBRARIES)}
    kept["driver"] = (environment.get("driver") or {}).get("version")
    kept["torch_cuda"] = (environment.get("torch_build") or {}).get("cuda")
    return {name: str(value) for name, value in kept.items() if value is not None}
