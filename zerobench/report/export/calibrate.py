"""Turns what a run on GPUs measured into a calibration file, which predictions on such GPUs then use.

Per model of GPU and world size, because NCCL's buffers depend on the number of ranks: the CUDA context with a step's
kernels, NCCL's buffers and the host memory of a rank that no tensor holds. Solo trials are real processes on real GPUs,
so their context and their host memory count; their collectives move nothing and make no buffers, so those do not.

And per model of GPU what its measured steps say of the time model (calibrated_time.py).
"""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from zerobench.common.errors import UserError
from zerobench.common.units import counted
from zerobench.common.vocabulary import Category, Place, StepKind
from zerobench.config.hardware.overheads import CALIBRATION_VARIABLE, CalibratedGpu, Calibration, Spread
from zerobench.config.trial.trial import Evidence
from zerobench.records.folder import write_whole
from zerobench.records.records import RankRecord
from zerobench.records.store import Run, load_run
from zerobench.report.figures.calibrated_time import TimedStep, fitted_steps, timed_step
from zerobench.report.figures.capacity import context_bytes

_PACKAGES = ("zerobench", "python", "torch", "deepspeed", "transformers")
_LIBRARIES = ("nvidia-nccl-", "nvidia-cuda-runtime")


@dataclass
class _Readings:
    """Readings of the ranks on one model of GPU, in bytes."""

    num_ranks: int = 0
    context: list[int] = field(default_factory=list)
    collectives: list[int] = field(default_factory=list)
    rest_of_process: list[int] = field(default_factory=list)

    def add(self, rank: RankRecord, evidence: Evidence) -> None:
        self.num_ranks += 1
        if rank.context is not None:
            self.context += _known(context_bytes(rank))
            self.collectives += _known(rank.context.collectives_bytes) if evidence is Evidence.MEASURED else []
        self.rest_of_process += _known(_rest_of_process_bytes(rank))


def calibration_of(run: Run) -> Calibration:
    """The overheads that the ranks of `run` measured on GPUs, with the versions they ran with.

    Raises UserError: no rank of it ran on a GPU, or none could read the driver.
    """
    readings: dict[tuple[str, int], _Readings] = {}
    steps: dict[tuple[str, bool], list[TimedStep]] = {}
    num_trials = 0
    for trial in run.trials():
        num_trials += 1
        if (step := timed_step(trial)) is not None:
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
        raise UserError(f"RUN: {run.run_id}: CUDA context size not recorded on its GPU ranks; {_missing_reason(run)}")
    gpus = tuple(_calibrated(gpu, size, reading) for (gpu, size), reading in sorted(readings.items()))
    whole = {gpu for gpu, of_passes in steps if not of_passes}
    timed = tuple(
        fitted_steps(timings) for (gpu, of_passes), timings in sorted(steps.items()) if not (of_passes and gpu in whole)
    )
    return Calibration(run_id=run.run_id, versions=_versions(run.environment), gpus=gpus, steps=timed)


def write_calibration(run_path: Path, out: Path) -> Calibration:
    """Write the calibration of the run in folder `run_path` to the file `out`, whole or not at all.

    Raises UserError: as `calibration_of`; `run_path` is no run; `out` cannot be written.
    """
    calibration = calibration_of(load_run(run_path))
    head = (
        f"# CUDA context, NCCL memory and step times, measured in run {calibration.run_id}. Predictions use it "
        f"where\n# {CALIBRATION_VARIABLE} names this file. Bytes; rest_of_process is host memory.\n"
    )
    try:
        write_whole(out, head + yaml.safe_dump(calibration.model_dump(mode="json"), sort_keys=False, width=110))
    except OSError as error:
        raise UserError(f"--out: {out}: {error.strerror or error}") from None
    return calibration


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


def _missing_reason(run: Run) -> str:
    """Reason that the samplers gave for reading nothing."""
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
