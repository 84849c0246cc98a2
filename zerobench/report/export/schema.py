"""Names, order and types of the tidy tables' columns: a public interface, which a test holds still.

Every column may be empty but those that name the trial; bytes and counts are integers always, never floats.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from zerobench.config.axes.axes import KEY_COLUMNS
from zerobench.records.instants import ModelStates
from zerobench.report.figures.trial_parts import Note, PhaseFigures, RankFigures, StepFigures

STRING, INTEGER, FLOAT, BOOLEAN = "string", "Int64", "Float64", "boolean"
"""pandas' nullable dtypes."""

_DTYPES = {str: STRING, int: INTEGER, bool: BOOLEAN}


def _each(kind: str, *names: str) -> dict[str, str]:
    """Columns of one type, in this order."""
    return dict.fromkeys(names, kind)


KEYS: Mapping[str, str] = {
    **_each(STRING, "run_id", "trial_id", "config_hash"),
    "repeat": INTEGER,
    **{column.name: _DTYPES[column.kind] for column in KEY_COLUMNS},
}
"""The trial of a row, and the settings that define it; the first columns of `memory` and `trials`."""

MEMORY: Mapping[str, str] = {
    **KEYS,
    "rank": INTEGER,
    **_each(STRING, "role", "step", "phase", "place", "category"),
    **_each(INTEGER, "live_bytes", "at_peak_bytes", "own_peak_bytes", "at_tensor_peak_bytes"),
}
"""One row for each rank, step (`first`, `steady`), phase, place and category (one of them `total`)."""

TRIALS: Mapping[str, str] = {
    **KEYS,
    **_each(STRING, "status", "reason"),
    **_each(FLOAT, "step_time_s_median", "forward_s", "backward_s", "step_s", "samples_per_s", "tokens_per_s"),
    **_each(FLOAT, "tflops_per_gpu", "mfu"),
    **_each(INTEGER, "device_peak_bytes", "nvml_peak_bytes", "host_peak_bytes"),
    **_each(FLOAT, "energy_joules", "nvme_read_bytes_per_s", "nvme_write_bytes_per_s", "loss_first", "loss_last"),
    **_each(FLOAT, "loss_parity", "norm_parity"),
    **_each(STRING, "nodes", "job"),
    **_each(FLOAT, "step_bound_s", "expected_step_s", "expected_step_low_s", "expected_step_high_s"),
}
"""One row for each trial, skipped and failed ones included. `nodes`: the names of the nodes that it ran on, with spaces
between; `job`: Slurm's id of the job that ran it; `loss_parity`, `norm_parity`: how far its losses, and the norms of
its gradients before clipping, lie from those of the trial that it is held against, the latter as a fraction of them;
`step_bound_s`: of trials predicted for a GPU, what a step takes at least (estimate/time/bound.py), empty where a term
is not known; `expected_step_s`: what it is expected to take, between `_low_s` and `_high_s` in eight of ten cases
(estimate/time/expected.py)."""

ERRORS: Mapping[str, str] = {
    **KEYS,
    "rank": INTEGER,
    **_each(STRING, "step", "phase", "place", "category", "quantity"),
    **_each(INTEGER, "measured_bytes", "predicted_bytes"),
    "error": FLOAT,
    **_each(INTEGER, "measured_min_bytes", "measured_max_bytes"),
    "against": STRING,
}
"""One row for each figure (`quantity`: `live`, `peak`, `reserved`, `used`) that was both measured and predicted; the
keys are those of the predicted trial. `error` is a fraction of the measured bytes, below 0 where the prediction is too
small; min and max are the extremes over the measured ranks; `against` says how they were measured: by real ranks
(`measured`), or by the predicted rank alone on a real device (`solo`)."""

NVML: Mapping[str, str] = {
    **_each(STRING, "run_id", "trial_id", "hostname", "gpu_uuid"),
    "t_s": FLOAT,
    "phase": STRING,
    **_each(INTEGER, "used_bytes", "reserved_bytes"),
    "power_watts": FLOAT,
    "node": INTEGER,
}
"""One row for each NVML sample. `t_s` is Unix time by the clock of its node; `phase` is empty between phases; `node` is
the node's index within the trial, which tells apart nodes that share a hostname, empty in older runs."""

OF_TRIAL: Mapping[str, str] = {"run_id": STRING, "trial_id": STRING}
"""The trial of a row, in tables that have nothing else of it."""

_KINDS = {"int": INTEGER, "float": FLOAT}


def _columns_of(figures: type[Any]) -> Mapping[str, str]:
    """A column for each plain field of a dataclass; enumerations are their texts."""
    kinds = {field.name: str(field.type).removesuffix(" | None") for field in fields(figures)}
    return {name: _KINDS.get(kind, STRING) for name, kind in kinds.items() if kind != ModelStates.__name__}


SUMMARY: Mapping[str, str] = {
    **TRIALS,
    **_each(STRING, "label", "settings", "rule"),
    **_each(FLOAT, "started_at_s", "ended_at_s"),
    **_each(STRING, "device_name", "gpu"),
    **_each(INTEGER, "capacity_bytes", "device_needed_bytes", "host_needed_bytes", "host_capacity_bytes"),
    **_each(BOOLEAN, "loss_parity_holds", "norm_parity_holds"),
    "void": STRING,
}
"""`trials` as a page needs it. `label`: short, unique over the runs; `settings`: what the sweep says to DeepSpeed;
`gpu`: the catalogue's name, of predicted and real ones; `capacity_bytes`: memory of one device, and
`device_needed_bytes` what the rank that needs most needs of it (capacity.py); `host_needed_bytes`: of a node's memory,
and `host_capacity_bytes` what a plan was told of it; `void`: why the
throughput is void. `energy_joules`, which takes the samples, is empty."""

PEAKS: Mapping[str, str] = {
    **OF_TRIAL,
    "rank": INTEGER,
    **_each(STRING, "place", "phase", "category"),
    "bytes": INTEGER,
}
"""The categories at the instant of the steady step's peak, of the rank whose peak of that place is largest."""

RANKS: Mapping[str, str] = {
    **OF_TRIAL,
    **_columns_of(RankFigures),
    **_each(INTEGER, "parameters_bytes", "gradients_bytes", "optimizer_bytes"),
}
"""One row for each rank. The first peak is that of the first step, start-up included; device and host peaks those of
the steady step; allocated, reserved and used those of any step; the last three are its model states."""


COMPARED: Mapping[str, str] = {
    **OF_TRIAL,
    **_each(STRING, "label", "strategy"),
    "world_size": INTEGER,
    "role": STRING,
    "num_ranks": INTEGER,
    "losses": STRING,
    **_each(FLOAT, "loss_difference", "norm_difference", "step_time_s_median", "step_time_s_spread", "tokens_per_s"),
    **_each(FLOAT, "speed_up", "efficiency", "weak_efficiency", "sent_bytes", "received_bytes", "formula_sent_bytes"),
    "formula_received_bytes": FLOAT,
    **_each(INTEGER, "parameters_bytes", "gradients_bytes", "optimizer_bytes"),
    "saved_fraction": FLOAT,
    "peak_bytes": INTEGER,
    **_each(FLOAT, "in_flight_fraction", "exposed_fraction", "wait_fraction", "mean_staleness"),
}
"""Measured trials beside the single process that trains the same global batch (zerobench.report.figures.strategies), a
row for each side. Bytes that a ring or a tree moves of a message need not be whole; fractions are of 1."""

PHASES: Mapping[str, str] = {**OF_TRIAL, **_columns_of(PhaseFigures)}
"""Totals by phase, of the rank with the largest device peak; Unix times of the phase in that same step."""

STEPS: Mapping[str, str] = {**OF_TRIAL, **_columns_of(StepFigures)}
"""The timed steps, from 0 on, each as its slowest rank took it; `tokens`: of the step, all ranks together."""


NOTES: Mapping[str, str] = {**OF_TRIAL, **_columns_of(Note)}
"""Notes for a reader of the figures; `rank` is empty if the note is of the whole trial."""


def arrow_schema(columns: Mapping[str, str]) -> Any:
    """The pyarrow schema of a table with these columns."""
    import pyarrow as pa  # noqa: PLC0415 -- whoever only looks at names must not wait for it

    types = {STRING: pa.string(), INTEGER: pa.int64(), FLOAT: pa.float64(), BOOLEAN: pa.bool_()}
    return pa.schema([(name, types[kind]) for name, kind in columns.items()])
