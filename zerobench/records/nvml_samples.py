"""File of NVML samples: one line per reading, complete up to the last line even if its writer was killed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from zerobench.common.errors import UserError

Values = tuple[float, int | None, int | None, float | None, float | None]
"""Fields of a Reading, which is such a tuple."""


class NvmlSample(NamedTuple):
    """One reading of one device; the field names are the file's columns."""

    t_s: float
    """Unix time."""
    gpu_uuid: str
    used_bytes: int | None
    reserved_bytes: int | None
    power_watts: float | None
    """Read ten times a second, so absent in most samples."""
    energy_joules: float | None
    """Running counter of the driver, read with the power: differences between two samples are energy."""


HEADER = ",".join(NvmlSample._fields) + "\n"


def row(gpu_uuid: str, reading: Values) -> str:
    """Format a reading as a line of the file."""
    t_s, used, reserved, watts, joules = reading
    power = "," if watts is None and joules is None else f"{_cell(watts)},{_cell(joules)}"
    return f"{t_s:.6f},{gpu_uuid},{_cell(used)},{_cell(reserved)},{power}\n"


def _cell(value: float | None) -> float | str:
    return "" if value is None else value


def read_samples(path: Path) -> Iterator[NvmlSample]:
    """Yield the samples in `path` in the order of reading; memory does not grow with the file.

    A last line without its newline is left out: that is what a sampler leaves that was killed while writing.

    Raises:
        UserError: the file cannot be read, has other columns, or another line is not a sample.

    """
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            yield from _parse(path, (line for line in file if line.endswith("\n")))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not readable as NVML samples: {error}") from None


def _parse(path: Path, lines: Iterator[str]) -> Iterator[NvmlSample]:
    first = next(lines, HEADER)
    if first != HEADER:
        raise UserError(f"{path}: line 1: columns {first[:200].rstrip()!r}; choices: {HEADER.strip()!r}")
    for number, line in enumerate(lines, start=2):
        try:
            t_s, gpu_uuid, used, reserved, power, energy = line[:-1].split(",")
            yield NvmlSample(_finite(t_s), gpu_uuid, _int(used), _int(reserved), _float(power), _float(energy))
        except ValueError:
            columns = HEADER.strip()
            raise UserError(f"{path}: line {number}: {line[:200].rstrip()!r} is not a sample of {columns!r}") from None


def _int(cell: str) -> int | None:
    if cell and not cell.isdecimal():
        raise ValueError
    return int(cell) if cell else None


def _float(cell: str) -> float | None:
    return _finite(cell) if cell else None


def _finite(cell: str) -> float:
    number = float(cell)
    if not math.isfinite(number):
        raise ValueError
    return number
