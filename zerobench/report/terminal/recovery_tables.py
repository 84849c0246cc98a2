"""Terminal table of checkpoints: size, seconds, extra memory, and how a trial went on from one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from zerobench.report.column_units import MISSING, Unit, byte_unit, show_number, show_whole, time_unit
from zerobench.report.recovery import Resumed, Transfers, distance_text, resumed, uninterrupted_losses
from zerobench.report.terminal.layout import Column, Section, Shown, table

CAPTION = (
    "A save lasts until every file is on the disk (fsync), a load begins with files that the kernel was asked to "
    "forget; GB/s: the checkpoint's size over that. more: memory that a rank takes more meanwhile, resident and on its "
    "GPU; in a load that is also optimizer states, which are made then, and what it has read of a mapped file. loss "
    "diff: largest difference of a loss after the resume from the uninterrupted one; 0 is equal to the bit. "
    "lost: steps done again after a rank was killed; recovered: from its death to the end of the first step that is "
    "new; restart: from the end of the first launch to that of the second's first step."
)


def recovery_sections(shown: Sequence[Shown], width: int) -> Iterator[Section]:
    """The trials that saved and were resumed."""
    trials = [one.trial for one in shown]
    found = [(one, resumed(one.trial, uninterrupted_losses(one.trial, trials))) for one in shown]
    rows = [(one, row) for one, row in found if row is not None]
    if rows:
        yield Section("Checkpoints", CAPTION, table(_columns([row for _, row in rows]), rows, width))


def _columns(rows: Sequence[Resumed]) -> list[Column[Resumed]]:
    saves, loads = [row.save for row in rows if row.save], [row.load for row in rows if row.load]
    size = byte_unit(one.size_bytes for one in saves)
    more = byte_unit(held for one in [*saves, *loads] for held in (one.host_bytes, one.device_bytes))
    has_gpu = any(one.device_bytes is not None for one in [*saves, *loads])
    gpu = {name: Column(f"GPU more, {more.name}", None, _of(name, _device(more))) for name in ("save", "load")}
    brief = time_unit([one.seconds for one in [*saves, *loads]])
    return [
        Column(f"on disk, {size.name}", f"disk {size.name}", _of("save", lambda one: size.show(one.size_bytes))),
        Column("by formula", None, lambda row: size.show(row.formula_bytes)),
        Column(f"save, {brief.name}", f"save {brief.name}", _of("save", lambda one: brief.show(one.seconds))),
        Column("GB/s", None, _of("save", gigabytes_per_s)),
        Column(f"more, {more.name}", None, _of("save", lambda one: more.show(one.host_bytes))),
        *([gpu["save"]] if has_gpu else []),
        Column(f"load, {brief.name}", f"load {brief.name}", _of("load", lambda one: brief.show(one.seconds))),
        Column("GB/s", None, _of("load", gigabytes_per_s)),
        Column(f"more, {more.name}", None, _of("load", lambda one: more.show(one.host_bytes))),
        *([gpu["load"]] if has_gpu else []),
        Column("on ranks", "on", lambda row: str(row.world_size)),
        Column("converted, s", None, lambda row: show_number(row.convert_s)),
        Column("loss diff", "diff", lambda row: distance_text(row.loss_distance)),
        Column("lost", "lost", lambda row: show_whole(row.steps_lost)),
        Column("recovered, s", "recov s", lambda row: show_number(row.recover_s)),
        Column("restart, s", "restart s", lambda row: show_number(row.restart_s)),
    ]


def _device(unit: Unit) -> Callable[[Transfers], str]:
    return lambda one: unit.show(one.device_bytes)


def _of(which: str, show: Callable[[Transfers], str]) -> Callable[[Resumed], str]:
    def cell(row: Resumed) -> str:
        one: Transfers | None = getattr(row, which)
        return MISSING if one is None else show(one)

    return cell


def gigabytes_per_s(one: Transfers) -> str:
    """In units of 1e9 bytes, as drives are sold."""
    return show_number(None if one.bytes_per_s is None else one.bytes_per_s / 1e9)
