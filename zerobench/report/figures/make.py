"""Makes the figures of one trial from its record: the one place that computes them."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping
from dataclasses import replace

from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Category, Place, Status, StepKind
from zerobench.config.derived.cluster import Cluster
from zerobench.config.hardware.hardware import Gpu, device_capacity_bytes, peak_flops
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.clock.place import gpu_of
from zerobench.estimate.clock.step import ExpectedStep
from zerobench.estimate.time.bound import step_bound
from zerobench.estimate.time.expected import expected_step
from zerobench.estimate.time.predicted_speed import PredictedStep, predicted_step
from zerobench.records.instants import device_peak_bytes, host_peak_bytes
from zerobench.records.records import Failure, TrialRecord
from zerobench.records.trials import Trial, all_ranks_ran, completed, is_whole, num_params, roles
from zerobench.report.figures.batch_ramp import batch_figures
from zerobench.report.figures.capacity import DeviceNeed, device_needs, fit_of
from zerobench.report.figures.fit import Fit
from zerobench.report.figures.host_parameters import holders
from zerobench.report.figures.nvml_view import devices_of, nvml_peak_bytes
from zerobench.report.figures.parity import losses
from zerobench.report.figures.pipeline import stages
from zerobench.report.figures.recovery import resumed
from zerobench.report.figures.server import sides
from zerobench.report.figures.speed import flops_per_s, nvme_bytes_per_s, speed_of, timed_tokens, void_reason
from zerobench.report.figures.standing import stood
from zerobench.report.figures.strategy_figures import side_figures
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.figures.trial_parts import (
    Note,
    notes,
    phase_rows,
    place_peaks,
    rank_rows,
    steady_peaks,
    step_rows,
)
from zerobench.report.words.column_units import plain
from zerobench.report.words.labels import setting_text


def trial_figures(trial: Trial, label: str = "", cluster: Cluster | None = None) -> TrialFigures:
    """The figures of `trial`, without its parity; on `cluster`, else on the GPU and host memory that its spec names."""
    record, gpu, speed = trial.record, gpu_of(trial), speed_of(trial)
    curve = losses(trial) if completed(trial) else ()
    read, written = nvme_bytes_per_s(trial)
    steady, needs, predicted = list(steady_peaks(trial)), device_needs(trial), _predicted_step(trial, cluster)
    return TrialFigures(
        trial=trial,
        spec=trial.spec,
        run_id=record.run_id,
        trial_id=record.trial_id,
        config_hash=record.config_hash,
        label=label,
        num_params=num_params(trial),
        status=record.status,
        reason=record.reason,
        rule=record.rule,
        is_whole=is_whole(trial),
        why=None if completed(trial) else _missing_reason(record),
        started_at_s=record.started_at_s,
        ended_at_s=record.ended_at_s,
        nodes=[plain(name) for name in record.nodes],
        job=record.job and plain(record.job),
        speed=speed and replace(speed, steps=()),
        timed_s=array("d", [step.step_s for step in speed.steps] if speed else []),
        timed_tokens=sum(timed_tokens(trial)),
        is_alone=not all_ranks_ran(trial),
        void=void_reason(trial),
        flops_formulas=tuple(dict.fromkeys(rank.flops_formula for rank in trial.ranks if rank.flops_formula)),
        device_peak_bytes=device_peak_bytes(trial) if is_whole(trial) else None,
        nvml_peak_bytes=nvml_peak_bytes(trial),
        host_peak_bytes=host_peak_bytes(trial) if is_whole(trial) else None,
        sampled_host_bytes=max((host.peak_rss_bytes or 0 for host in record.host), default=0) or None,
        nvme_held_bytes=_nvme_held_bytes(trial),
        nvme_read_bytes_per_s=read,
        nvme_write_bytes_per_s=written,
        loss_first=curve[0] if curve else None,
        loss_last=curve[-1] if curve else None,
        bound=predicted.bound,
        expected=predicted.expected,
        expected_mfu=_mfu(trial, predicted.expected),
        settings=_settings(trial.spec),
        device_name=trial.ranks[0].device_name if trial.ranks else None,
        is_on_cpu=all(rank.device_type == "cpu" for rank in trial.ranks),
        gpu=None if gpu is None else gpu.name,
        needs=needs,
        fit=_fit(trial, needs, gpu, cluster),
        has_trace=any(rank.step_trace for rank in trial.ranks),
        has_allocator=any(rank.device_memory for rank in trial.ranks),
        roles=roles(trial),
        steady=steady,
        peaks=list(place_peaks(trial, steady)),
        ranks=list(rank_rows(trial)),
        phases=list(phase_rows(trial, steady)),
        steps=list(step_rows(trial)),
        notes=[Note(rank, sys.intern(note)) for rank, note in notes(trial)],
        sides=sides(trial),
        stages=stages(trial),
        batches=batch_figures(trial),
        holders=list(holders(trial)),
        standing=list(stood(trial)),
        compared=list(side_figures(trial)),
        resumed=resumed(trial, ()),
    )


def _predicted_step(trial: Trial, cluster: Cluster | None) -> PredictedStep:
    if cluster is None:
        return predicted_step(trial)
    return PredictedStep(
        step_bound(trial, cluster.gpu, cluster.links), expected_step(trial, cluster.gpu, cluster.links)
    )


def _mfu(trial: Trial, expected: ExpectedStep | None) -> float | None:
    flops = None if expected is None else flops_per_s(trial, expected.step_s)
    peak = None if flops is None else peak_flops(trial.ranks[0].device_name, trial.spec.precision)
    return None if flops is None or peak is None else flops / peak[0]


def _fit(trial: Trial, needs: Mapping[StepKind, DeviceNeed], gpu: Gpu | None, cluster: Cluster | None) -> Fit:
    if cluster is not None:
        return fit_of(trial, needs, cluster.device_memory_bytes, cluster.host_memory_bytes)
    capacity_bytes = _capacity_bytes(trial, gpu)
    return fit_of(trial, needs, capacity_bytes, trial.spec.prediction.host_memory_bytes)


def _capacity_bytes(trial: Trial, gpu: Gpu | None) -> int | None:
    """Memory that CUDA hands out on the smallest device that the trial ran on; of a prediction, the catalogue's.

    Older records have NVML's total alone, of which the catalogue knows the part that the driver keeps.
    """
    if not trial.spec.evidence.needs_device:
        return None if gpu is None else gpu.capacity_bytes
    capacities = [rank.device_capacity_bytes for rank in trial.ranks if rank.device_capacity_bytes is not None]
    if capacities:
        return min(capacities)
    devices = [(device.name, device.total_bytes) for device in devices_of(trial)]
    return min((device_capacity_bytes(name, total) for name, total in devices if total is not None), default=None)


def _nvme_held_bytes(trial: Trial) -> int | None:
    rows = (row for rank in trial.ranks for row in rank.memory)
    held = [row.live_bytes for row in rows if row.place is Place.NVME and row.category is Category.TOTAL]
    return max(held, default=None)


def _settings(spec: TrialSpec) -> str:
    """DeepSpeed keys of the sweep (`reduce_bucket_size=5e8`, the file that it names), growth of the batch, and settings
    that no other column has: the drive that it swaps to, and which rank is predicted, if not the first.
    """
    settings = [f"{key.rpartition('.')[2]}={setting_text(spec, key)}" for key in sorted(spec.ds_config)]
    ramp = f"ramp={spec.batch_ramp}" if spec.batch_ramp else ""
    drive = f"nvme={spec.nvme_path}" if spec.nvme_path else ""
    rank = "all ranks" if spec.prediction.all_ranks else f"rank{spec.prediction.rank}" if spec.prediction.rank else ""
    return plain(" ".join(part for part in [*settings, spec.ds_config_file or "", ramp, drive, rank] if part))


def _missing_reason(record: TrialRecord) -> str:
    text = record.reason or (record.failure.message if record.failure else "no reason recorded")
    rule = f" (rule {record.rule})" if record.rule else ""
    detail = _detail(record.failure) if record.failure and record.status is not Status.SKIPPED else ""
    return plain(f"{text}{rule}{detail}")


def _detail(failure: Failure) -> str:
    """Place of the failure and the bytes it was about, as far as they are known."""
    step = -1 if failure.step_index is None else failure.step_index  # below zero is start-up
    parts = [
        (failure.rank is not None, f"rank {failure.rank}"),
        (failure.phase is not None, str(failure.phase)),
        (step >= 0, f"step {step + 1}"),
        (failure.bytes_asked is not None, f"requested {format_bytes(failure.bytes_asked)}"),
        (failure.bytes_free is not None, f"free {format_bytes(failure.bytes_free)}"),
        (bool(failure.stacks), f"stacks of {len(failure.stacks)} ranks in the record"),
    ]
    known = [text for is_known, text in parts if is_known]
    return f" ({', '.join(known)})" if known else ""
