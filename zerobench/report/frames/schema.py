"""Names, order and types of the tidy tables' columns: a public interface, which a test holds still.

Every column may be empty but those that name the trial; bytes and counts are integers always, never floats.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from zerobench.report.figures.trial import Note, PhaseFigures, RankFigures, StepFigures
from zerobench.report.memory_view import ModelStates
from zerobench.sweeping.axes import KEY_COLUMNS

STRING, INTEGER, FLOAT, BOOLEAN = "string", "Int64", "Float64", "boolean"
"""pandas' nullable dtypes."""

_DTYPES = {str: STRING, int: INTEGER, bool: BOOLEAN}

KEYS: Mapping[str, str] = {
    "run_id": STRING,
    "trial_id": STRING,
    "config_hash": STRING,
    "repeat": INTEGER,
    **{column.name: _DTYPES[column.kind] for column in KEY_COLUMNS},
}
"""Which trial a row belongs to, and what defines it; the first columns of `memory` and `trials`."""

MEMORY: Mapping[str, str] = {
    **KEYS,
    "rank": INTEGER,
    "role": STRING,
    "step": STRING,
    "phase": STRING,
    "place": STRING,
    "category": STRING,
    "live_bytes": INTEGER,
    "at_peak_bytes": INTEGER,
    "own_peak_bytes": INTEGER,
    "at_tensor_peak_bytes": INTEGER,
}
"""One row for each rank, step (`first`, `steady`), phase, place and category (one of them `total`)."""

TRIALS: Mapping[str, str] = {
    **KEYS,
    "status": STRING,
    "reason": STRING,
    "step_time_s_median": FLOAT,
    "forward_s": FLOAT,
    "backward_s": FLOAT,
    "step_s": FLOAT,
    "samples_per_s": FLOAT,
    "tokens_per_s": FLOAT,
    "tflops_per_gpu": FLOAT,
    "mfu": FLOAT,
    "device_peak_bytes": INTEGER,
    "nvml_peak_bytes": INTEGER,
    "host_peak_bytes": INTEGER,
    "energy_joules": FLOAT,
    "nvme_read_bytes_per_s": FLOAT,
    "nvme_write_bytes_per_s": FLOAT,
    "loss_first": FLOAT,
    "loss_last": FLOAT,
    "loss_parity": FLOAT,
    "norm_parity": FLOAT,
    "nodes": STRING,
    "job": STRING,
    "step_bound_s": FLOAT,
    "expected_step_s": FLOAT,
    "expected_step_low_s": FLOAT,
    "expected_step_high_s": FLOAT,
}
"""One row for each trial, skipped and failed ones included. `nodes`: the names of the nodes that it ran on, with spaces
between; `job`: Slurm's id of the job that ran it; `loss_parity`, `norm_parity`: how far its losses, and the norms of
its gradients before clipping, lie from those of the trial that it is held against, the latter as a fraction of them;
`step_bound_s`: of trials predicted for a GPU, what a step takes at least (step_time/bound.py), empty where a term is
not known; `expected_step_s`: what it is expected to take, between `_low_s` and `_high_s` in eight of ten cases
(step_time/expected.py)."""

ERRORS: Mapping[str, str] = {
    **KEYS,
    "rank": INTEGER,
    "step": STRING,
    "phase": STRING,
    "place": STRING,
    "category": STRING,
    "quantity": STRING,
    "measured_bytes": INTEGER,
    "predicted_bytes": INTEGER,
    "error": FLOAT,
    "measured_min_bytes": INTEGER,
    "measured_max_bytes": INTEGER,
    "against": STRING,
}
"""One row for each figure (`quantity`: `live`, `peak`, `reserved`, `used`) that was both measured and predicted; the
keys are those of the predicted trial. `error` is a fraction of the measured bytes, below 0 where the prediction is too
small; min and max are the extremes over the measured ranks; `against` says how they were measured: by real ranks
(`measured`), or by the predicted rank alone on a real device (`solo`)."""

NVML: Mapping[str, str] = {
    "run_id": STRING,
    "trial_id": STRING,
    "hostname": STRING,
    "gpu_uuid": STRING,
    "t_s": FLOAT,
    "phase": STRING,
    "used_bytes": INTEGER,
    "reserved_bytes": INTEGER,
    "power_watts": FLOAT,
    "node": INTEGER,
}
"""One row for each NVML sample. `t_s` is Unix time by the clock of its node; `phase` is empty between phases; `node` is
the node's index within the trial, which tells apart nodes that share a hostname, empty in older runs."""

_TRIAL: Mapping[str, str] = {"run_id": STRING, "trial_id": STRING}

_KINDS = {"int": INTEGER, "float": FLOAT}


def _columns_of(figures: type[Any]) -> Mapping[str, str]:
    """A column for each plain field of a dataclass; enumerations are their texts."""
    kinds = {field.name: str(field.type).removesuffix(" | None") for field in fields(figures)}
    return {name: _KINDS.get(kind, STRING) for name, kind in kinds.items() if kind != ModelStates.__name__}


SUMMARY: Mapping[str, str] = {
    **TRIALS,
    "label": STRING,
    "settings": STRING,
    "rule": STRING,
    "started_at_s": FLOAT,
    "ended_at_s": FLOAT,
    "device_name": STRING,
    "gpu": STRING,
    "capacity_bytes": INTEGER,
    "device_needed_bytes": INTEGER,
    "host_needed_bytes": INTEGER,
    "host_capacity_bytes": INTEGER,
    "loss_parity_holds": BOOLEAN,
    "norm_parity_holds": BOOLEAN,
    "void": STRING,
}
"""`trials` as a page needs it. `label`: short, unique over the runs; `settings`: what the sweep says to DeepSpeed;
`gpu`: the catalogue's name, of predicted and real ones; `capacity_bytes`: memory of one device, and
`device_needed_bytes` what the rank that needs most needs of it (capacity.py); `host_needed_bytes`: of a node's memory,
and `host_capacity_bytes` what a plan was told of it; `void`: why the
throughput is void. `energy_joules`, which takes the samples, is empty."""

PEAKS: Mapping[str, str] = {
    **_TRIAL,
    "rank": INTEGER,
    "place": STRING,
    "phase": STRING,
    "category": STRING,
    "bytes": INTEGER,
}
"""The categories at the instant of the steady step's peak, of the rank whose peak of that place is largest."""

RANKS: Mapping[str, str] = {
    **_TRIAL,
    **_columns_of(RankFigures),
    "parameters_bytes": INTEGER,
    "gradients_bytes": INTEGER,
    "optimizer_bytes": INTEGER,
}
"""One row for each rank. The first peak is that of the first step, start-up included; device and host peaks those of
the steady step; allocated, reserved and used those of any step; the last three are its model states."""


COMPARED: Mapping[str, str] = {
    **_TRIAL,
    "label": STRING,
    "strategy": STRING,
    "world_size": INTEGER,
    "role": STRING,
    "num_ranks": INTEGER,
    "losses": STRING,
    "loss_difference": FLOAT,
    "norm_difference": FLOAT,
    "step_time_s_median": FLOAT,
    "step_time_s_spread": FLOAT,
    "tokens_per_s": FLOAT,
    "speed_up": FLOAT,
    "efficiency": FLOAT,
    "weak_efficiency": FLOAT,
    "sent_bytes": FLOAT,
    "received_bytes": FLOAT,
    "formula_sent_bytes": FLOAT,
    "formula_received_bytes": FLOAT,
    "parameters_bytes": INTEGER,
    "gradients_bytes": INTEGER,
    "optimizer_bytes": INTEGER,
    "saved_fraction": FLOAT,
    "peak_bytes": INTEGER,
    "in_flight_fraction": FLOAT,
    "exposed_fraction": FLOAT,
    "wait_fraction": FLOAT,
    "mean_staleness": FLOAT,
}
"""Measured trials beside the single process that trains the same global batch (zerobench.report.strategies), a row for
each side. Bytes that a ring or a tree moves of a message need not be whole; fractions are of 1."""

PHASES: Mapping[str, str] = {**_TRIAL, **_columns_of(PhaseFigures)}
"""Totals by phase, of the rank with the largest device peak; Unix times of the phase in that same step."""

STEPS: Mapping[str, str] = {**_TRIAL, **_columns_of(StepFigures)}
"""The timed steps, from 0 on, each as its slowest rank took it; `tokens`: of the step, all ranks together."""


NOTES: Mapping[str, str] = {**_TRIAL, **_columns_of(Note)}
"""What a reader of the figures must know; `rank` is empty where the trial says it as a whole."""


def arrow_schema(columns: Mapping[str, str]) -> Any:
    """The pyarrow schema of a table with these columns."""
    import pyarrow as pa  # noqa: PLC0415 -- whoever only looks at names must not wait for it

    types = {STRING: pa.string(), INTEGER: pa.int64(), FLOAT: pa.float64(), BOOLEAN: pa.bool_()}
    return pa.schema([(name, types[kind]) for name, kind in columns.items()])
