"""The rows of the tidy tables: what each trial's records come to, one mapping or one set of columns at a time."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from zerobench.report.column_units import plain
from zerobench.report.frames.predicted_speed import step_bound_s
from zerobench.report.frames.schema import KEYS
from zerobench.report.memory_view import device_peak_bytes, host_peak_bytes
from zerobench.report.nvml_view import nvml_peak_bytes
from zerobench.report.parity import losses
from zerobench.report.predictions.predicted import Pair
from zerobench.report.speed import nvme_bytes_per_s, speed_of
from zerobench.report.trials import Trial, completed, num_params
from zerobench.spec.axes import KEY_COLUMNS

Columns = dict[str, list[Any]]


def key_values(trial: Trial) -> dict[str, Any]:
    """The key columns of `trial` (schema.KEYS); what nobody knows of a user's own script is None."""
    spec, record = trial.spec, trial.record
    values = {
        "run_id": record.run_id,
        "trial_id": record.trial_id,
        "config_hash": record.config_hash,
        "repeat": spec.repeat,
        **{column.name: column.value(spec) for column in KEY_COLUMNS if column.value is not None},
        "num_params": num_params(trial),
    }
    return {name: values[name] if spec.knows(name) else None for name in KEYS}


_OF_ROW = (
    "step",
    "phase",
    "place",
    "category",
    "live_bytes",
    "at_peak_bytes",
    "own_peak_bytes",
    "at_tensor_peak_bytes",
)


def memory_columns(trial: Trial) -> Columns:
    """The columns after the keys of `trial`'s rows in the memory table (schema.MEMORY): all ranks, as recorded."""
    rows = [row for rank in trial.ranks for row in rank.memory]
    columns: Columns = {
        "rank": [rank.rank for rank in trial.ranks for _ in rank.memory],
        "role": [rank.role for rank in trial.ranks for _ in rank.memory],
    }
    return columns | {name: list(map(attrgetter(name), rows)) for name in _OF_ROW}


_OF_CELL = (
    "rank",
    "step",
    "phase",
    "place",
    "category",
    "quantity",
    "measured_bytes",
    "predicted_bytes",
    "error",
    "measured_min_bytes",
    "measured_max_bytes",
)


def error_columns(pair: Pair) -> Columns:
    """The columns after the keys of the prediction's rows in the errors table (schema.ERRORS)."""
    columns: Columns = {name: [getattr(cell, name) for cell in pair.cells] for name in _OF_CELL}
    return {**columns, "against": [pair.against.value] * len(pair.cells)}


def trial_values(trial: Trial, energy_joules: float | None) -> dict[str, Any]:
    """The row of `trial` in the trials table (schema.TRIALS), but for `loss_parity` and `norm_parity`, which take
    another trial.

    Speed, device and host peaks and losses are those of completed trials: what a failed one got to before it
    ended is in its records and in the memory table. What NVML saw stands for every trial that it watched.
    """
    curve = losses(trial) if completed(trial) else ()
    read, written = nvme_bytes_per_s(trial)
    return {
        **key_values(trial),
        "status": trial.record.status.value,
        "reason": trial.record.reason,
        **_speed_values(trial),
        "device_peak_bytes": device_peak_bytes(trial) if completed(trial) else None,
        "nvml_peak_bytes": nvml_peak_bytes(trial),
        "host_peak_bytes": host_peak_bytes(trial) if completed(trial) else None,
        "energy_joules": energy_joules,
        "nvme_read_bytes_per_s": read,
        "nvme_write_bytes_per_s": written,
        "loss_first": curve[0] if curve else None,
        "loss_last": curve[-1] if curve else None,
        "loss_parity": None,
        "norm_parity": None,
        "nodes": plain(" ".join(trial.record.nodes)) or None,
        "job": trial.record.job and plain(trial.record.job),
        "step_bound_s": step_bound_s(trial),
    }


_SPEED = (
    "step_time_s_median",
    "forward_s",
    "backward_s",
    "step_s",
    "samples_per_s",
    "tokens_per_s",
    "tflops_per_gpu",
    "mfu",
)


def _speed_values(trial: Trial) -> dict[str, float | None]:
    speed = speed_of(trial)
    return {name: None if speed is None else getattr(speed, name) for name in _SPEED}
