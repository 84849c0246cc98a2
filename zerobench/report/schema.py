"""Names, order and types of the tidy tables' columns: a public interface, which a test holds still.

Every column may be empty but those that name the trial; bytes and counts are integers always, never floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STRING, INTEGER, FLOAT, BOOLEAN = "string", "Int64", "Float64", "boolean"
"""pandas' nullable dtypes."""

KEYS: Mapping[str, str] = {
    "run_id": STRING,
    "trial_id": STRING,
    "config_hash": STRING,
    "repeat": INTEGER,
    "model": STRING,
    "num_params": INTEGER,
    "strategy": STRING,
    "zero_stage": INTEGER,
    "offload_optimizer": STRING,
    "offload_param": STRING,
    "num_nodes": INTEGER,
    "world_size": INTEGER,
    "micro_batch_size": INTEGER,
    "gradient_accumulation_steps": INTEGER,
    "sequence_length": INTEGER,
    "precision": STRING,
    "optimizer": STRING,
    "activation_checkpointing": BOOLEAN,
    "attention": STRING,
    "evidence": STRING,
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
}
"""One row for each trial, skipped and failed ones included."""

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
}
"""One row for each figure (`quantity`: `live`, `peak`, `reserved`, `used`) that was both measured and predicted; the
keys are those of the predicted trial. `error` is a fraction of the measured bytes, below 0 where the prediction is too
small; the last two are the extremes over the measured ranks."""

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
}
"""One row for each NVML sample. `t_s` is Unix time; `phase` is empty between phases."""


def arrow_schema(columns: Mapping[str, str]) -> Any:
    """The pyarrow schema of a table with these columns."""
    import pyarrow as pa  # noqa: PLC0415 -- whoever only looks at names must not wait for it

    types = {STRING: pa.string(), INTEGER: pa.int64(), FLOAT: pa.float64(), BOOLEAN: pa.bool_()}
    return pa.schema([(name, types[kind]) for name, kind in columns.items()])
