"""The page's table of all trials: what each took, how fast it was, and whether that was seen or predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from zerobench.records import Status
from zerobench.report.column_units import MISSING, Unit, byte_unit, show_number, show_percent, show_whole, time_unit
from zerobench.report.evidence import evidence_text
from zerobench.report.frames.doubts import disagreements
from zerobench.report.recovery import distance_text
from zerobench.report.render.grid import Column, Grid, grid
from zerobench.report.render.visible import visible
from zerobench.report.terminal.layout import listed
from zerobench.spec.trial import Evidence

Trial = Mapping[str, Any]
"""A row of RunFrames.trials, None for what is not available."""


class _PlainColumns(dict[str, list[Any]]):
    """The columns of a frame as plain values, each made when it is first looked at."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame

    def __missing__(self, name: str) -> list[Any]:
        column = self.frame[name]
        self[name] = column.astype(object).where(column.notna(), None).tolist()
        return self[name]


class _Row(Mapping[str, Any]):
    """One row: a dict of each would take ten times the frame, most of it for columns that nobody looks at."""

    __slots__ = ("_columns", "_index")

    def __init__(self, columns: _PlainColumns, index: int) -> None:
        self._columns = columns
        self._index = index

    def __getitem__(self, name: str) -> Any:
        return self._columns[name][self._index]

    def __iter__(self) -> Iterator[str]:
        return (str(name) for name in self._columns.frame)

    def __len__(self) -> int:
        return self._columns.frame.shape[1]


def rows_of(frame: pd.DataFrame) -> list[Trial]:
    """The rows of a frame of nullable dtypes as plain values, None for NA."""
    columns = _PlainColumns(frame)
    return [_Row(columns, index) for index in range(len(frame))]


def trials_grid(trials: Sequence[Trial]) -> Grid:
    """All trials; columns that no trial has anything to say in are left out."""
    time = time_unit([trial["step_time_s_median"] for trial in trials])
    all_completed = all(trial["status"] == Status.COMPLETED.value for trial in trials)
    all_measured = not any(map(is_predicted, trials))
    columns: list[Column[Trial]] = [
        Column("trial", lambda trial: str(trial["label"]), is_number=False),
        Column(
            "figures are",
            lambda trial: "" if all_measured else evidence_text(trial["evidence"], trial["gpu"]),
            is_number=False,
        ),
        Column("ended", lambda trial: "" if all_completed else status_text(trial["status"]), is_number=False),
        Column("ranks", lambda trial: show_whole(trial["world_size"])),
        _bytes("device peak", "device_peak_bytes", trials),
        Column("of capacity, %", _share_of_capacity),
        _bytes("NVML peak", "nvml_peak_bytes", trials),
        _bytes("host peak", "host_peak_bytes", trials),
        Column(f"step, {time.name}", lambda trial: time.show(trial["step_time_s_median"])),
        Column("tokens/s", lambda trial: show_whole(trial["tokens_per_s"])),
        Column("TFLOP/s per GPU", lambda trial: show_number(trial["tflops_per_gpu"])),
        Column("MFU, %", lambda trial: show_percent(trial["mfu"])),
        Column("loss off", shown(distance_text, "loss_parity")),
        Column("gradient norm off", shown(distance_text, "norm_parity")),
        Column("nodes", lambda trial: listed((trial["nodes"] or "").split()), is_number=False),
        Column("Slurm job", lambda trial: trial["job"] or "", is_number=False),
        Column("beware", lambda trial: "; ".join(short for short, _ in _doubts(trial)), is_number=False),
    ]
    return grid(_caption(trials, all_measured=all_measured), columns, trials, _kind)


def _caption(trials: Sequence[Trial], *, all_measured: bool) -> str:
    """How to read the table, as far as its columns go."""
    sentences = [
        "All trials, in the order of the sweep.",
        "Peaks are those of the rank that needed most, start-up included; the host's is of one rank.",
        "NVML's peak also counts what other processes held." if any(t["nvml_peak_bytes"] for t in trials) else "",
        "Off: largest distance from the reference's, of gradients' norms as a fraction."
        if _are_compared(trials)
        else "",
        "All were measured." if all_measured else "Italics: predicted, not measured.",
    ]
    return " ".join(filter(None, sentences))


def _are_compared(trials: Sequence[Trial]) -> bool:
    return any(trial["loss_parity"] is not None for trial in trials)


def _bytes(name: str, key: str, trials: Sequence[Trial]) -> Column[Trial]:
    unit = _fine_enough([trial[key] for trial in trials])
    return Column(f"{name}, {unit.name}", shown(unit.show, key))


def _fine_enough(values: Sequence[int | None]) -> Unit:
    """The unit of a column, with the decimals that leave its small values two digits; what is tiny may vanish."""
    unit = byte_unit(values)
    smallest = min((value / unit.size for value in values if value and value > unit.size / 100), default=1.0)
    needed = next((decimals for decimals in range(unit.decimals, 3) if smallest * 10**decimals >= 10), 3)
    return unit if unit.name == "B" else replace(unit, decimals=needed)


def shown(show: Callable[[float | None], str], key: str) -> Callable[[Trial], str]:
    """What a column writes of the value at `key`."""
    return lambda trial: show(trial[key])


def _share_of_capacity(trial: Trial) -> str:
    peak, capacity = trial["device_peak_bytes"], trial["capacity_bytes"]
    return show_percent(peak / capacity if peak is not None and capacity else None)


def is_predicted(trial: Trial) -> bool:
    """Whether the trial's figures were not seen on real ranks."""
    return bool(trial["evidence"] != Evidence.MEASURED.value)


def status_text(status: str) -> str:
    """A status in words."""
    return status.replace("_", " ")


def remarks(trials: Sequence[Trial]) -> list[tuple[str, str]]:
    """The trials whose rows are not simply to be believed, each with what speaks against it."""
    return [
        (visible(str(trial["label"])), visible("; ".join(words for _, words in doubts)))
        for trial in trials
        if (doubts := _doubts(trial))
    ]


def _doubts(trial: Trial) -> list[tuple[str, str]]:
    """What speaks against a trial's figures, in two words and in full."""
    doubts = []
    for name, far in disagreements(trial):
        difference = f"its {name} differ from the reference's by {far:.2g}"
        doubts.append((f"{name} disagree", f"{difference}, more than rounding can: do not believe its figures"))
    if trial["void"]:
        doubts.append(("speed void", f"its speed is void: {trial['void']}"))
    return doubts


def _kind(trial: Trial) -> str:
    if disagreements(trial):
        return "doubted"
    if trial["status"] == Status.SKIPPED.value:
        return "skipped"
    if trial["status"] != Status.COMPLETED.value:
        return "failed"
    return "predicted" if is_predicted(trial) else ""


def counted(values: Sequence[str]) -> str:
    """How often each value occurs, in the order of first sight: `9 completed, 2 skipped`."""
    counts = pd.Series(values, dtype="object").value_counts(sort=False)
    return ", ".join(f"{count:,} {value}" for value, count in counts.items()) or MISSING
