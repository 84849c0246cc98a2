"""The axes of a sweep: what each may be set to, read from plain values, with errors that name axis, value and choices.

An axis is written as one value or as a list of values. `read_grid` returns lists of values of the right type, in
the order written; those of `ds_config` are multiplied out, since each of its keys is an axis of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from zerobench.ds_config import check_ds_config, check_overrides, load_user_config, resolve_key
from zerobench.errors import UserError, unknown_choice
from zerobench.spec.base import user_error
from zerobench.spec.batch_ramp import AskedRamp
from zerobench.spec.checkpoint import CheckpointSpec
from zerobench.spec.gpu_names import known_gpu
from zerobench.spec.plain import as_number, as_written, one_line
from zerobench.spec.presets import resolve_model
from zerobench.spec.strategy import strategy_info
from zerobench.spec.trial import (
    Attention,
    Compile,
    Compression,
    Consistency,
    CrossEntropy,
    Evidence,
    Offload,
    Optimizer,
    PipelineSchedule,
    Precision,
    TfStrategy,
)

AUTO = "auto"
"""World size, nodes or GPUs per node: what the machine has; gpu: the machine's own, or none; precision: what it is fast
at (zerobench.spec.precision)."""

LAST = "last"
"""Rank: that of the highest number, whatever the world size."""

ALL = "all"
"""Rank: every rank of a small world, each a process on an emulated GPU of its own."""

LAYOUT = ("world_size", "num_nodes", "gpus_per_node")
"""The axes that together say how many ranks lie where."""

HOW = ("evidence", "gpu", "rank")
"""The axes that say how a trial's figures are come by, and nothing about its work."""

MAX_RANKS = 2**20
"""Ranks that a trial may have, ten times those of the largest machine that trains one model; more is a mistake."""

MAX_POINTS = 10_000
"""Points that one grid may have; more is a mistake."""

_LARGEST = 2**31 - 1

Grid = dict[str, list[Any]]
"""Axis to its values, in the order written."""


def read_grid(axes: Mapping[str, Any], where: str) -> Grid:
    """The values of each axis in `axes`. Raises UserError, which begins with `where`."""
    grid = {axis: read_axis(axis, raw, where) for axis, raw in axes.items()}
    points = math.prod(len(values) for values in grid.values())
    if points > MAX_POINTS:
        raise UserError(f"{where}: the lists multiply to {points} points; at most {MAX_POINTS}")
    return grid


def replace_axes(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`below` with the axes of `above` in place of its own, at their places; new axes come last.

    The axes of the layout replace each other: a world size above takes the place of nodes and GPUs per node below.
    """
    layout = {axis: raw for axis, raw in above.items() if axis in LAYOUT}
    out: dict[str, Any] = {}
    for axis, raw in below.items():
        if layout and axis in LAYOUT:
            out |= layout
        else:
            out[axis] = above.get(axis, raw)
    return out | dict(above)


def read_axis(axis: str, raw: object, where: str) -> list[Any]:
    """The values of one axis. Raises UserError, which begins with `where`."""
    if axis not in READERS:
        raise UserError(one_line(f"{where}: {unknown_choice('axis', axis, READERS)}"))
    written = raw if isinstance(raw, list) else [raw]
    if not written:
        raise UserError(f"{where}: {axis}: [] has no value; write one or more, or leave the axis out")
    try:
        return [value for one in written for value in READERS[axis](axis, one)]
    except UserError as error:
        raise UserError(one_line(f"{where}: {error}")) from None


def flat_overrides(raw: object) -> dict[str, Any]:
    """The mapping under `ds_config` with one level: DeepSpeed's full dotted path to the value or list as written.

    Raises UserError for an unknown key, or two spellings of one.
    """
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise UserError(f"ds_config: {as_written(raw)}: no mapping of DeepSpeed's keys; write for example {_EXAMPLE}")
    flat: dict[str, Any] = {}
    for name, value in _leaves(raw):
        path = resolve_key(name)
        if path in flat:
            raise UserError(f"ds_config: {name}: {path} stands twice")
        flat[path] = value
    return flat


_EXAMPLE = "{reduce_bucket_size: 5e8}"


def _leaves(raw: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in raw.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


Reader = Callable[[str, Any], list[Any]]
"""Axis name and one value as written, to the values it stands for."""


def _model(_: str, raw: object) -> list[Any]:
    return [resolve_model(raw)]  # type: ignore[arg-type] # it refuses other types with its own choices


def _strategy(_: str, raw: object) -> list[Any]:
    return [strategy_info(raw).name]


def _choice(choices: type[StrEnum], also: tuple[str, ...] = ()) -> Reader:
    def read(axis: str, raw: object) -> list[Any]:
        if isinstance(raw, str) and raw in list(choices):
            return [choices(raw)]
        raise unknown_choice(axis, raw, [*map(str, choices), *also])

    return read


def _precision(axis: str, raw: object) -> list[Any]:
    return [AUTO] if raw == AUTO else _choice(Precision, also=(AUTO,))(axis, raw)


def _offload(axis: str, raw: object) -> list[Any]:
    return _choice(Offload)(axis, "none" if raw is None else raw)


def _count(axis: str, raw: object, least: int, most: int, *words: str) -> list[Any]:
    """An integer within bounds, or one of the words."""
    if isinstance(raw, str) and raw in words:
        return [raw]
    number = as_number(raw)
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        choices = ", or ".join([f"an integer from {least} to {most}", *words])
        raise UserError(f"{axis}: {as_written(raw)}; choices: {choices}")
    return [number]


def _positive(axis: str, raw: object) -> list[Any]:
    return _count(axis, raw, 1, _LARGEST)


def _bytes(axis: str, raw: object) -> list[Any]:
    """A number of bytes, or null for what the engine chooses by itself."""
    return [None] if raw is None else _positive(axis, raw)


def _group(axis: str, raw: object) -> list[Any]:
    """Ranks of a group within the world, or null for none."""
    return [None] if raw is None else _count(axis, raw, 2, MAX_RANKS)


def _threads(axis: str, raw: object) -> list[Any]:
    """A number of threads, or null for the node's cores divided among its ranks."""
    return [None] if raw is None else _positive(axis, raw)


def _compression(axis: str, raw: object) -> list[Any]:
    return _choice(Compression)(axis, "none" if raw is None else raw)


def _compile(axis: str, raw: object) -> list[Any]:
    return _choice(Compile)(axis, "none" if raw is None else raw)


def _batch_ramp(axis: str, raw: object) -> list[Any]:
    """A mapping with the fields of AskedRamp, or none."""
    if raw in (None, "none"):
        return [None]
    if not isinstance(raw, dict):
        fields = ", ".join(AskedRamp.model_fields)
        raise UserError(f"{axis}: {as_written(raw)}; choices: none, or a mapping of {fields}")
    written = {name: as_number(value) for name, value in raw.items()}
    switched = [name for name, value in written.items() if isinstance(value, bool)]
    if switched:  # pydantic would take it for 1
        raise UserError(f"{axis}: {switched[0]}: {as_written(written[switched[0]])} is no number")
    try:
        return [AskedRamp.model_validate(written)]
    except ValidationError as error:
        raise user_error(error, AskedRamp, axis) from None


def _checkpoint(axis: str, raw: object) -> list[Any]:
    """Null, the steps between two saves, or a mapping with what CheckpointSpec has."""
    if raw in (None, "none"):
        return [None]
    fields = raw if isinstance(raw, dict) else {"every_steps": _positive(f"{axis}.every_steps", raw)[0]}
    try:
        return [CheckpointSpec.model_validate(fields)]
    except ValidationError as error:
        raise user_error(error, CheckpointSpec, axis) from None


def _ranks(axis: str, raw: object) -> list[Any]:
    return _count(axis, raw, 1, MAX_RANKS, AUTO)


def _rank(axis: str, raw: object) -> list[Any]:
    return _count(axis, raw, 0, MAX_RANKS - 1, LAST, ALL)


def _gpu(axis: str, raw: object) -> list[Any]:
    """A catalogued GPU's short name, None for the CPU, or `auto`."""
    if raw in (None, "none", AUTO):
        return [AUTO if raw == AUTO else None]
    return [known_gpu(raw, axis, also=(AUTO, "none")).name]


def _switch(axis: str, raw: object) -> list[Any]:
    if isinstance(raw, bool):
        return [raw]
    raise unknown_choice(axis, raw, ["true", "false"])


def _text(axis: str, raw: object) -> list[Any]:
    if raw is None or (isinstance(raw, str) and raw):
        return [raw]
    raise UserError(f"{axis}: {as_written(raw)}; choices: a path, or null")


def _config_file(axis: str, raw: object) -> list[Any]:
    [path] = _text(axis, raw)
    if path is not None:
        check_ds_config(load_user_config(path), path)
    return [path]


def _overrides(axis: str, raw: object) -> list[Any]:
    flat = flat_overrides(raw)
    choices = {path: value if isinstance(value, list) else [value] for path, value in flat.items()}
    for path, values in choices.items():
        if not values:
            raise UserError(f"{axis}: {path}: [] has no value; write one or more, or leave the key out")
    if math.prod(len(values) for values in choices.values()) > MAX_POINTS:
        raise UserError(f"{axis}: the lists multiply to more than {MAX_POINTS} points")
    points = itertools.product(*choices.values())
    return [check_overrides(dict(zip(choices, point, strict=True))) for point in points]


READERS: dict[str, Reader] = {
    "model": _model,
    "strategy": _strategy,
    "offload_optimizer": _offload,
    "offload_param": _offload,
    "nvme_path": _text,
    "world_size": _ranks,
    "num_nodes": _ranks,
    "gpus_per_node": _ranks,
    "micro_batch_size": _positive,
    "gradient_accumulation_steps": _positive,
    "batch_ramp": _batch_ramp,
    "sequence_length": _positive,
    "precision": _precision,
    "optimizer": _choice(Optimizer),
    "activation_checkpointing": _switch,
    "attention": _choice(Attention),
    "cross_entropy": _choice(CrossEntropy),
    "compile": _compile,
    "zero_init": _switch,
    "bucket_bytes": _bytes,
    "compression": _compression,
    "reshard_after_forward": _switch,
    "consistency": _choice(Consistency),
    "hpz_partition_size": _group,
    "quantized_weights": _switch,
    "quantized_gradients": _switch,
    "mics_shard_size": _group,
    "checkpoint": _checkpoint,
    "tf_strategy": _choice(TfStrategy),
    "pipeline_schedule": _choice(PipelineSchedule),
    "threads_per_rank": _threads,
    "ds_config": _overrides,
    "ds_config_file": _config_file,
    "evidence": _choice(Evidence),
    "gpu": _gpu,
    "rank": _rank,
}
"""The axes, and what reads a value of each."""
