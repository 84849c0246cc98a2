"""What stood when memory was refused, in lines: by what for, by module, by who allocated it, and what lay free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zerobench.records import Standing
from zerobench.report.column_units import plain
from zerobench.units import format_bytes

_MOST = 6
_LEAST = 0.01
"""Below this share of what was given out, a line says nothing."""


def standing_lines(found: Standing, bytes_asked: int | None, bytes_free: int | None) -> Iterator[tuple[str, list[str]]]:
    """Each list under what it is of; empty ones are left out."""
    given_out, reserved = format_bytes(found.allocated_bytes), format_bytes(found.reserved_bytes)
    yield f"allocated {given_out} of {reserved} reserved by torch", list(_pieces(found, bytes_asked, bytes_free))
    lists: tuple[tuple[str, Mapping[str, int]], ...] = (
        ("by category", {name.value.replace("_", " "): size for name, size in found.by_category.items()}),
        ("by module", found.by_module),
        ("by allocation site", found.by_site),
    )
    for title, sizes in lists:
        lines = list(_largest(sizes, found.allocated_bytes))
        if lines:
            yield title, lines


def _pieces(found: Standing, bytes_asked: int | None, bytes_free: int | None) -> Iterator[str]:
    loose = found.reserved_bytes - found.allocated_bytes
    yield (
        f"reserved but unallocated: {format_bytes(loose)}, largest free block {format_bytes(found.largest_free_bytes)}"
    )
    if bytes_asked is None or bytes_free is None:
        return
    if found.in_pieces(bytes_asked, bytes_free):
        yield f"fragmentation: {format_bytes(bytes_asked)} would have fit in one contiguous free block"
    else:
        missing = bytes_asked - bytes_free - loose
        yield f"full: {format_bytes(missing)} missing even without fragmentation"


def _largest(sizes: Mapping[str, int], total: int) -> Iterator[str]:
    ranked = sorted(sizes.items(), key=lambda item: -item[1])[:_MOST]
    for name, size in ranked:
        if size and size >= _LEAST * total:
            yield f"{plain(name)}: {format_bytes(size)}, {size / max(total, 1):.1%}".replace("%", " %")
