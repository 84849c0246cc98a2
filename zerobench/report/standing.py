"""Memory held at the failed allocation, in lines: by what for, by module, by who allocated it, and what lay free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from zerobench.records import Failure, Standing
from zerobench.report.column_units import plain
from zerobench.units import format_bytes

_MOST = 6
_LEAST = 0.01
"""Below this share of what was given out, a line says nothing."""


@dataclass(frozen=True)
class HeldShare:
    """One line of what stood: told by category, module or allocation site."""

    by: str
    """Or `free`."""
    name: str
    size_bytes: int
    share: float
    """Of all that torch had given out."""


def stood(failure: Failure | None) -> Iterator[HeldShare]:
    """Memory held at the failed allocation, the largest of each kind first; nothing where nobody looked on."""
    if failure is not None and failure.standing is not None:
        yield from _stood(failure.standing)
        yield from _free(failure.standing)


def standing_lines(
    standing: Standing, bytes_asked: int | None, bytes_free: int | None
) -> Iterator[tuple[str, list[str]]]:
    """Each list under what it is of; empty ones are left out."""
    given_out, reserved = format_bytes(standing.allocated_bytes), format_bytes(standing.reserved_bytes)
    yield f"allocated {given_out} of {reserved} reserved by torch", list(_pieces(standing, bytes_asked, bytes_free))
    lists: dict[str, list[str]] = {}
    for piece in _stood(standing):
        text = f"{piece.name}: {format_bytes(piece.size_bytes)}, {piece.share:.1%}".replace("%", " %")
        lists.setdefault(f"by {piece.by}", []).append(text)
    yield from lists.items()


def _free(standing: Standing) -> Iterator[HeldShare]:
    """What torch had reserved and not given out, in all and in one piece: much in small pieces is fragmentation."""
    loose, total = standing.reserved_bytes - standing.allocated_bytes, max(standing.allocated_bytes, 1)
    yield HeldShare("free", "reserved but unallocated", loose, loose / total)
    yield HeldShare("free", "of it in one block", standing.largest_free_bytes, standing.largest_free_bytes / total)


def _pieces(standing: Standing, bytes_asked: int | None, bytes_free: int | None) -> Iterator[str]:
    loose = standing.reserved_bytes - standing.allocated_bytes
    largest = format_bytes(standing.largest_free_bytes)
    yield f"reserved but unallocated: {format_bytes(loose)}, largest free block {largest}"
    if bytes_asked is None or bytes_free is None:
        return
    if standing.in_pieces(bytes_asked, bytes_free):
        yield f"fragmentation: {format_bytes(bytes_asked)} would have fit in one contiguous free block"
    else:
        missing = bytes_asked - bytes_free - loose
        yield f"full: {format_bytes(missing)} missing even without fragmentation"


def _stood(standing: Standing) -> Iterator[HeldShare]:
    lists: tuple[tuple[str, Mapping[str, int]], ...] = (
        ("category", {name.value.replace("_", " "): size for name, size in standing.by_category.items()}),
        ("module", standing.by_module),
        ("allocation site", standing.by_site),
    )
    total = max(standing.allocated_bytes, 1)
    for by, sizes in lists:
        for name, size in sorted(sizes.items(), key=lambda item: -item[1])[:_MOST]:
            if size and size >= _LEAST * total:
                yield HeldShare(by, plain(name), size, size / total)
