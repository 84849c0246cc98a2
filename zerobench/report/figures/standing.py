"""Memory held at the failed allocation, in lines: by category, holder, module and site, and what lay free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from zerobench.common.units import format_bytes
from zerobench.records.records import HostStanding, Standing
from zerobench.records.trials import Trial
from zerobench.report.figures.capacity import host_bytes_per_node
from zerobench.report.words.column_units import plain

_MOST = 6
_LEAST = 0.01
"""Below this share of what was given out, of the host of its tensors, a line says nothing."""


@dataclass(frozen=True)
class HeldShare:
    """One line of what stood: told by category, holder, module or allocation site."""

    by: str
    """Or `free`; of the host, `host` before it."""
    name: str
    size_bytes: int
    share: float
    """Share of all that torch had given out; of the host, of all that was known to be held."""


def stood(trial: Trial) -> Iterator[HeldShare]:
    """Memory held at the failed allocation, the largest of each kind first; nothing where nobody watched."""
    failure = trial.record.failure
    if failure is not None and failure.standing is not None:
        yield from _stood(failure.standing, failure.standing.allocated_bytes)
        yield from _free(failure.standing)
    on_host = host_standing_of(trial)
    if on_host is not None:
        yield HeldShare("host", when(on_host), on_host.total_bytes, 1.0)
        for share in _stood(on_host, on_host.total_bytes):
            yield replace(share, by=f"host {share.by}")


def host_standing_of(trial: Trial) -> HostStanding | None:
    """Memory held on the host whose memory was refused, or would be: a prediction that needs more than a node has."""
    failure, room = trial.record.failure, trial.spec.prediction.host_memory_bytes
    if failure is not None:
        return failure.host_standing
    if room is None or (host_bytes_per_node(trial) or 0) <= room:
        return None
    peaks = [rank.host_peak for rank in trial.ranks if rank.host_peak is not None]
    return max(peaks, key=lambda peak: peak.total_bytes, default=None)


def when(standing: HostStanding) -> str:
    """The instant that `standing` is of."""
    return f"{standing.at}, the last account before the end" if standing.is_last_account else standing.at


def host_standing_lines(standing: HostStanding) -> Iterator[tuple[str, list[str]]]:
    """As `standing_lines`, of the host."""
    yield f"{format_bytes(standing.total_bytes)} of host memory held at {when(standing)}", []
    yield from _lists(standing, standing.total_bytes)


def standing_lines(
    standing: Standing, bytes_asked: int | None, bytes_free: int | None
) -> Iterator[tuple[str, list[str]]]:
    """Each list under what it is of; empty ones are left out."""
    given_out, reserved = format_bytes(standing.allocated_bytes), format_bytes(standing.reserved_bytes)
    yield f"allocated {given_out} of {reserved} reserved by torch", list(_pieces(standing, bytes_asked, bytes_free))
    yield from _lists(standing, standing.allocated_bytes)


def _lists(standing: Standing | HostStanding, total_bytes: int) -> Iterator[tuple[str, list[str]]]:
    lists: dict[str, list[str]] = {}
    for piece in _stood(standing, total_bytes):
        text = f"{piece.name}: {format_bytes(piece.size_bytes)}, {piece.share:.1%}"
        lists.setdefault(f"by {piece.by}", []).append(text)
    yield from lists.items()


def _free(standing: Standing) -> Iterator[HeldShare]:
    """Memory that torch had reserved and not given out, in all and in one piece; small pieces are fragmentation."""
    loose, total = standing.reserved_bytes - standing.allocated_bytes, max(standing.allocated_bytes, 1)
    yield HeldShare("free", "reserved but unallocated", loose, loose / total)
    yield HeldShare("free", "of it in one block", standing.largest_free_bytes, standing.largest_free_bytes / total)


def _pieces(standing: Standing, bytes_asked: int | None, bytes_free: int | None) -> Iterator[str]:
    loose = standing.reserved_bytes - standing.allocated_bytes
    largest = format_bytes(standing.largest_free_bytes)
    yield f"reserved but unallocated: {format_bytes(loose)}, largest free block {largest}"
    if bytes_asked is None or bytes_free is None:
        return
    if standing.is_fragmented(bytes_asked, bytes_free):
        free = format_bytes(bytes_free + loose)
        yield f"fragmented: {free} free in all would hold the {format_bytes(bytes_asked)} requested, not in one piece"
    else:
        missing = bytes_asked - bytes_free - loose
        yield f"full: {format_bytes(missing)} missing even without fragmentation"


def _stood(standing: Standing | HostStanding, total_bytes: int) -> Iterator[HeldShare]:
    lists: tuple[tuple[str, Mapping[str, int]], ...] = (
        ("category", {name.words: size for name, size in standing.by_category.items()}),
        ("holder", standing.by_holder),
        ("module", standing.by_module),
        ("allocation site", standing.by_site),
    )
    total = max(total_bytes, 1)
    least = _LEAST * (standing.tensor_bytes if isinstance(standing, HostStanding) else total)
    for by, sizes in lists:
        for name, size in sorted(sizes.items(), key=lambda item: -item[1])[:_MOST]:
            if size and size >= least:
                yield HeldShare(by, plain(name), size, size / total)
