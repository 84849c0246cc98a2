"""Readers of single axis values, with errors that name axis, value and choices.

A reader returns a list of one value, except for `ds_config`: its lists are multiplied out, since each key is an axis of
its own.
"""

from __future__ import annotations

import itertools
import math
from enum import StrEnum
from typing import Any

from zerobench.common.errors import UserError, unknown_choice
from zerobench.config.axes.axis import Reader
from zerobench.config.deepspeed import check_ds_config, check_overrides, load_user_config, resolve_key
from zerobench.config.deepspeed.user_file import leaves
from zerobench.config.derived.machine import MAX_RANKS
from zerobench.config.derived.strategy import strategy_info
from zerobench.config.hardware.hardware import known_gpu
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.base import validated
from zerobench.config.trial.batch_ramp import RampRequest
from zerobench.config.trial.checkpoint import CheckpointSpec
from zerobench.config.trial.plain import format_value, one_line, parse_number
from zerobench.config.trial.trial import Precision

AUTO = "auto"
"""World size, nodes or GPUs per node: as many as the machine has; gpu: the machine's own, or none; precision: one that
the machine is fast at (zerobench.config.sweep.precision)."""

LAST = "last"
"""Rank: the highest, for any world size."""

ALL = "all"
"""Rank: every rank of a small world, each a process on an emulated GPU of its own."""

MAX_POINTS = 10_000
"""Most points of one grid; more is taken for a mistake."""

_LARGEST = 2**31 - 1


def flat_overrides(raw: object) -> dict[str, Any]:
    """Flatten the mapping under `ds_config`: full dotted DeepSpeed path to value or list.

    Raises UserError for an unknown key, or two spellings of one.
    """
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise UserError(f"ds_config: {format_value(raw)}: not a mapping of DeepSpeed keys; for example {_EXAMPLE}")
    flat: dict[str, Any] = {}
    for name, value in leaves(raw):
        path = resolve_key(name)
        if path in flat:
            raise UserError(f"ds_config: {name}: {path} is given twice")
        flat[path] = value
    return flat


def full_key(name: str, option: str) -> str:
    """`ds_config.` and the full DeepSpeed path of a key. Raises UserError, which begins with `option`."""
    try:
        [path] = flat_overrides({name: None})
    except UserError as error:
        raise UserError(one_line(f"{option}: {error}")) from None
    return f"ds_config.{path}"


_EXAMPLE = "{reduce_bucket_size: 5e8}"


def model(_: str, raw: object) -> list[Any]:
    """Read a preset, a shape, or a transformers config."""
    return [resolve_model(raw)]  # type: ignore[arg-type] # it refuses other types with its own choices


def strategy(_: str, raw: object) -> list[Any]:
    return [strategy_info(raw).name]


def choice(choices: type[StrEnum], also: tuple[str, ...] = ()) -> Reader:
    """Reader of one of `choices`; null means `none` where there is one. `also`: further words to list in errors."""

    def read(axis: str, raw: object) -> list[Any]:
        raw = "none" if raw is None and "none" in list(choices) else raw
        if isinstance(raw, str) and raw in list(choices):
            return [choices(raw)]
        raise unknown_choice(axis, raw, [*choices, *also])

    return read


def precision(axis: str, raw: object) -> list[Any]:
    return [AUTO] if raw == AUTO else choice(Precision, also=(AUTO,))(axis, raw)


def count(least: int, most: int, *words: str) -> Reader:
    """Reader of an integer within bounds, or one of `words`."""

    def read(axis: str, raw: object) -> list[Any]:
        if isinstance(raw, str) and raw in words:
            return [raw]
        number = parse_number(raw)
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
            choices = ", or ".join([f"an integer from {least} to {most}", *words])
            raise UserError(f"{axis}: {format_value(raw)}; choices: {choices}")
        return [number]

    return read


positive = count(1, _LARGEST)
ranks = count(1, MAX_RANKS, AUTO)
rank = count(0, MAX_RANKS - 1, LAST, ALL)
group = count(2, MAX_RANKS)
"""Size of a group within the world."""


def or_null(reader: Reader) -> Reader:
    """Reader that also accepts null, for the engine's own choice or no group."""
    return lambda axis, raw: [None] if raw is None else reader(axis, raw)


def batch_ramp(axis: str, raw: object) -> list[Any]:
    """Read a mapping with the fields of RampRequest, or none."""
    if raw in (None, "none"):
        return [None]
    if not isinstance(raw, dict):
        fields = ", ".join(RampRequest.model_fields)
        raise UserError(f"{axis}: {format_value(raw)}; choices: none, or a mapping of {fields}")
    written = {name: parse_number(value) for name, value in raw.items()}
    switched = [name for name, value in written.items() if isinstance(value, bool)]
    if switched:  # pydantic would take it for 1
        raise UserError(f"{axis}: {switched[0]}: {format_value(written[switched[0]])} is not a number")
    return [validated(RampRequest, written, axis)]


def checkpoint(axis: str, raw: object) -> list[Any]:
    """Read null, the steps between two saves, or a mapping with the fields of CheckpointSpec."""
    if raw in (None, "none"):
        return [None]
    fields = raw if isinstance(raw, dict) else {"every_steps": positive(f"{axis}.every_steps", raw)[0]}
    return [validated(CheckpointSpec, fields, axis)]


def gpu(axis: str, raw: object) -> list[Any]:
    """Read a catalogued GPU's short name, None for the CPU, or `auto`."""
    if raw in (None, "none", AUTO):
        return [AUTO if raw == AUTO else None]
    return [known_gpu(raw, axis, also=(AUTO, "none")).name]


def switch(axis: str, raw: object) -> list[Any]:
    if isinstance(raw, bool):
        return [raw]
    raise unknown_choice(axis, raw, ["true", "false"])


def text(axis: str, raw: object) -> list[Any]:
    """Read a path, or null."""
    if raw is None or (isinstance(raw, str) and raw):
        return [raw]
    raise UserError(f"{axis}: {format_value(raw)}; choices: a path, or null")


def config_file(axis: str, raw: object) -> list[Any]:
    """Read the path of a DeepSpeed configuration, and check its contents."""
    [path] = text(axis, raw)
    if path is not None:
        check_ds_config(load_user_config(path), path)
    return [path]


def overrides(axis: str, raw: object) -> list[Any]:
    """Read DeepSpeed keys; lists are multiplied out."""
    flat = flat_overrides(raw)
    choices = {path: value if isinstance(value, list) else [value] for path, value in flat.items()}
    for path, values in choices.items():
        if not values:
            raise UserError(f"{axis}: {path}: [] is empty; give one or more values, or drop the key")
    if math.prod(len(values) for values in choices.values()) > MAX_POINTS:
        raise UserError(f"{axis}: the lists multiply to more than {MAX_POINTS} points")
    points = itertools.product(*choices.values())
    return [check_overrides(dict(zip(choices, point, strict=True))) for point in points]
