"""The rows that one trial leaves in each of the frames of run_frames.py, as plain mappings."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from zerobench.records import PhaseMark, Place, RankRecord, StepKind
from zerobench.report.capacity import device_need, host_bytes_per_node
from zerobench.report.column_units import plain
from zerobench.report.frames.predicted_speed import gpu_of
from zerobench.report.frames.rows import trial_values
from zerobench.report.labels import setting_text
from zerobench.report.memory_view import (
    Instant,
    ModelStates,
    end_instant,
    largest_peak,
    model_states,
    peak_instant,
    phase_peak,
)
from zerobench.report.nvml_view import devices_of
from zerobench.report.server import side_sentences
from zerobench.report.speed import slowest_steps, step_seconds_by_rank, timed_tokens, why_void
from zerobench.report.trials import Trial
from zerobench.spec.hardware import Gpu
from zerobench.spec.trial import TrialSpec

Row = dict[str, Any]


def summary_values(trial: Trial) -> Row:
    """The row of `trial` in schema.SUMMARY, but for what takes other trials: its label and its loss parity."""
    record, gpu, need = trial.record, gpu_of(trial), device_need(trial)
    return {
        **trial_values(trial, energy_joules=None),
        "label": None,
        "settings": _settings(trial.spec),
        "rule": record.rule,
        "started_at_s": record.started_at_s,
        "ended_at_s": record.ended_at_s,
        "device_name": trial.ranks[0].device_name if trial.ranks else None,
        "gpu": None if gpu is None else gpu.name,
        "capacity_bytes": _capacity_bytes(trial, gpu),
        "device_needed_bytes": None if need is None else need.total_bytes,
        "host_needed_bytes": host_bytes_per_node(trial),
        "host_capacity_bytes": trial.spec.prediction.host_memory_bytes,
        "loss_parity_holds": None,
        "norm_parity_holds": None,
        "void": why_void(trial),
    }


def _settings(spec: TrialSpec) -> str:
    """What the sweep says to DeepSpeed (`reduce_bucket_size=5e8`, the file that it names), how the batch grows, and
    what no other column says of a trial: the drive that it swaps to, and which rank is predicted, if not the first.
    """
    said = [f"{key.rpartition('.')[2]}={setting_text(spec, key)}" for key in sorted(spec.ds_config)]
    ramp = f"ramp={spec.batch_ramp}" if spec.batch_ramp else ""
    drive = f"nvme={spec.nvme_path}" if spec.nvme_path else ""
    rank = "all ranks" if spec.prediction.all_ranks else f"rank{spec.prediction.rank}" if spec.prediction.rank else ""
    return plain(" ".join(part for part in [*said, spec.ds_config_file or "", ramp, drive, rank] if part))


def _capacity_bytes(trial: Trial, gpu: Gpu | None) -> int | None:
    """Memory of the smallest device that the trial ran on; of a simulated one, what the catalogue says."""
    seen = [device.total_bytes for device in devices_of(trial) if device.total_bytes is not None]
    if seen or trial.spec.evidence.needs_device:
        return min(seen, default=None)
    return None if gpu is None else gpu.memory_bytes


def _key(trial: Trial) -> Row:
    return {"run_id": trial.record.run_id, "trial_id": trial.record.trial_id}


def peak_rows(trial: Trial) -> Iterator[Row]:
    """The rows of `trial` in schema.PEAKS; none for a place that the ledger did not look at."""
    for place in Place:
        instant = _fullest_instant(trial, place)
        if instant:
            where = {**_key(trial), "rank": instant.rank, "place": place.value, "phase": instant.phase.value}
            yield from ({**where, "category": c.value, "bytes": size} for c, size in instant.categories.items())


def _fullest_instant(trial: Trial, place: Place) -> Instant | None:
    """The steady peak; where nobody watched within the phases, as on NVMe, what lay there at that phase's end."""
    peak = largest_peak(trial, StepKind.STEADY, place)
    if peak is None or peak.categories:
        return peak
    rank = next(rank for rank in trial.ranks if rank.rank == peak.rank)
    return end_instant(rank, StepKind.STEADY, peak.phase, place)


def rank_rows(trial: Trial) -> Iterator[Row]:
    """The rows of `trial` in schema.RANKS."""
    seconds = step_seconds_by_rank(trial)
    for rank in trial.ranks:
        yield {
            **_key(trial),
            "rank": rank.rank,
            "role": rank.role,
            "hostname": rank.hostname,
            "node": rank.node,
            "device_name": rank.device_name,
            "device_uuid": rank.device_uuid,
            "device_peak_bytes": _peak_bytes(rank, StepKind.STEADY, Place.DEVICE),
            "first_peak_bytes": _peak_bytes(rank, StepKind.FIRST, Place.DEVICE),
            "host_peak_bytes": _peak_bytes(rank, StepKind.STEADY, Place.HOST),
            **_driver_values(rank),
            "step_time_s_median": seconds.get(rank.rank),
            **_states_values(model_states(rank)),
        }


def _peak_bytes(rank: RankRecord, step: StepKind, place: Place) -> int | None:
    instant = peak_instant(rank, step, place)
    return None if instant is None else instant.total_bytes


def _driver_values(rank: RankRecord) -> Row:
    rows, outside = rank.device_memory, rank.context
    return {
        "allocated_peak_bytes": _largest(row.peak_allocated_bytes for row in rows),
        "reserved_peak_bytes": _largest(row.peak_reserved_bytes for row in rows),
        "nvml_used_peak_bytes": _largest(row.nvml_used_bytes for row in rows),
        "alloc_retries": _largest(row.alloc_retries for row in rows),
        "context_bytes": outside and outside.context_bytes,
        "collectives_bytes": outside and outside.collectives_bytes,
        "other_processes_bytes": outside and outside.before_bytes,
    }


def _largest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _states_values(states: ModelStates | None) -> Row:
    names = ("parameters_bytes", "gradients_bytes", "optimizer_bytes")
    return {name: None if states is None else getattr(states, name) for name in names}


def phase_rows(trial: Trial) -> Iterator[Row]:
    """The rows of `trial` in schema.PHASES: the rank with the largest device peak, in every place."""
    fullest = largest_peak(trial, StepKind.STEADY, Place.DEVICE)
    rank = next((rank for rank in trial.ranks if fullest is None or rank.rank == fullest.rank), None)
    if rank is None:
        return
    held = dict.fromkeys((row.step, row.phase, row.place) for row in rank.memory)
    for step, phase, place in held:
        peak, end = phase_peak(rank, step, phase, place), end_instant(rank, step, phase, place)
        mark = _mark(rank, step, phase)
        yield {
            **_key(trial),
            "rank": rank.rank,
            "step": step.value,
            "phase": phase.value,
            "place": place.value,
            "live_bytes": end and end.total_bytes,
            "peak_bytes": peak and peak.total_bytes,
            "start_s": mark and mark.start_s,
            "end_s": mark and mark.end_s,
        }


def _mark(rank: RankRecord, step: StepKind, phase: str) -> PhaseMark | None:
    """The mark of `phase` in the step that the memory rows are of: the first, or the last memory step."""
    kind = "first" if step is StepKind.FIRST else "memory"
    found = [mark for mark in rank.marks if mark.phase == phase and (mark.kind == kind or mark.step_index < 0)]
    return found[-1] if found else None


def step_rows(trial: Trial) -> Iterator[Row]:
    """The rows of `trial` in schema.STEPS."""
    steps = slowest_steps(trial)
    sizes = timed_tokens(trial) if trial.spec.knows("gradient_accumulation_steps") else []
    for index, (step, tokens) in enumerate(itertools.zip_longest(steps, sizes[: len(steps)])):
        yield {**_key(trial), "step_index": index, **step.model_dump(), "tokens": tokens}


def note_rows(trial: Trial) -> Iterator[Row]:
    """The rows of `trial` in schema.NOTES."""
    yield from ({**_key(trial), "rank": None, "note": note} for note in trial.record.notes)
    for rank in trial.ranks:
        yield from ({**_key(trial), "rank": rank.rank, "note": note} for note in rank.notes)
    yield from ({**_key(trial), "rank": None, "note": sentence} for sentence in side_sentences(trial))
    for departure in dict.fromkeys(text for rank in trial.ranks for text in rank.departures):
        yield {**_key(trial), "rank": None, "note": departure}
