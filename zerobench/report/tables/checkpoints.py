"""Checkpoints and faults: size, seconds, extra memory, and how a trial went on from one."""

from collections.abc import Callable, Iterator, Sequence

from zerobench.report.figures.recovery import CheckpointFigures, Transfers, distance_text
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.model import Column, Table, figures_of, lines_of, of_part
from zerobench.report.words.column_units import byte_unit, show_number, show_whole, time_unit

TITLE = "Checkpoints"
HOW_TO_READ = (
    "Saves include fsync, loads start with a cold page cache; GB/s: checkpoint size over that time. "
    "more: additional memory of a rank meanwhile, resident and on its GPU; for a load including "
    "optimizer states created then and pages read of a mapped file. loss diff: largest loss difference "
    "after the resume from the uninterrupted run; 0: bitwise equal. lost: steps repeated after a rank "
    "was killed; recov: from its death to the end of the first new step; restart: from the end of the "
    "first launch to the end of the second launch's first step."
)


def checkpoints_table(trials: Sequence[TrialFigures]) -> Table[CheckpointFigures]:
    """A row for each trial that saved and was resumed."""
    lines = lines_of(trials, lambda trial: [trial.resumed] if trial.resumed else [])
    rows = figures_of(lines)
    sizes = byte_unit(row.save.size_bytes for row in rows if row.save)
    columns: list[Column[CheckpointFigures]] = [
        Column(
            "on disk",
            of_part(lambda row: row.save, lambda save: sizes.show(save.size_bytes)),
            sizes.name,
            narrow=f"disk {sizes.name}",
        ),
        Column("by formula", lambda row: sizes.show(row.formula_bytes), sizes.name, wide="by formula"),
        *_transfers(rows),
        Column("resumed on ranks", lambda row: show_whole(row.world_size), wide="on ranks", narrow="on"),
        Column("converted", lambda row: show_number(row.convert_s), "s"),
        Column("loss difference", lambda row: distance_text(row.loss_distance), wide="loss diff", narrow="diff"),
        Column("steps lost", lambda row: show_whole(row.steps_lost), wide="lost", narrow="lost"),
        Column("recovered", lambda row: show_number(row.recover_s), "s", narrow="recov s"),
        Column("restart", lambda row: show_number(row.restart_s), "s", narrow="restart s"),
    ]
    return Table(TITLE, HOW_TO_READ, columns, lines)


def _transfers(rows: Sequence[CheckpointFigures]) -> Iterator[Column[CheckpointFigures]]:
    """Costs of saving, then of loading; memory of a GPU where there was one."""
    known = [transfers for row in rows for transfers in (row.save, row.load) if transfers]
    more = byte_unit(held for transfers in known for held in (transfers.host_bytes, transfers.device_bytes))
    seconds = time_unit(transfers.seconds for transfers in known)
    has_gpu = any(transfers.device_bytes is not None for transfers in known)
    parts: tuple[tuple[str, Callable[[CheckpointFigures], Transfers | None]], ...] = (
        ("save", lambda row: row.save),
        ("load", lambda row: row.load),
    )
    for name, part in parts:
        brief = f"{name} {seconds.name}"
        yield Column(name, of_part(part, lambda transfers: seconds.show(transfers.seconds)), seconds.name, narrow=brief)
        yield Column(name, of_part(part, _gigabytes_per_s), "GB/s", wide="GB/s")
        host = of_part(part, lambda transfers: more.show(transfers.host_bytes))
        yield Column(name, host, f"{more.name} more", wide=f"more, {more.name}")
        if has_gpu:
            gpu = of_part(part, lambda transfers: more.show(transfers.device_bytes))
            yield Column(name, gpu, f"{more.name} more on the GPU", wide=f"GPU more, {more.name}")


def _gigabytes_per_s(transfers: Transfers) -> str:
    """In units of 1e9 bytes, as drives are sold."""
    return show_number(None if transfers.bytes_per_s is None else transfers.bytes_per_s / 1e9)
