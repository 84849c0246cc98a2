"""The page of docs/ about DeepSpeed's releases: its tables and its chart, made of peaks.csv; its prose stands there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import altair as alt

from benchmarks.prediction.simulated import gb, table
from zerobench.records.instants import GROUPS
from zerobench.report.charts.render import data, drawing, layered
from zerobench.report.words.palette import resolved

_DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = _DOCS / "deepspeed-versions.md"
CHART = _DOCS / "images" / "deepspeed-versions.svg"
_BLOCK = re.compile(r"(?<=<!-- made by benchmarks/versions/matrix.py show -->\n).*?(?=<!-- end -->)", re.DOTALL)
_LEAST_FRACTION = 0.02
_LEAST_BYTES = 50e6
"""What differs by less than either is no jump."""
_CELL_HEIGHT = 17

Row = dict[str, str]
Peaks = dict[str, dict[str, Row]]
"""Rows by cell and release."""


def write_pages(rows: Sequence[Row]) -> None:
    """Put the tables into the page, between its marks, and draw the chart."""
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
    CHART.write_text(_chart(rows), encoding="utf-8")


def with_tables(page: str, rows: Sequence[Row]) -> str:
    """`page` with the tables of `rows`."""
    made = "\n".join(["", *_peaks(rows), *_played(rows), *_jumps(rows), *_failures(rows)])
    return _BLOCK.sub(lambda _: made, page)


def releases(rows: Sequence[Row]) -> list[str]:
    """As they stand in the file, which is their order."""
    return list(dict.fromkeys(row["deepspeed"] for row in rows))


def _by_cell(rows: Sequence[Row]) -> Peaks:
    peaks: Peaks = {}
    for row in rows:
        peaks.setdefault(row["cell"], {})[row["deepspeed"]] = row
    return peaks


def need_bytes(row: Row) -> int:
    """What has to fit on the device: the larger of the first step, start-up included, and a steady one."""
    return max(int(row["first_device_bytes"]), int(row["steady_device_bytes"]))


def columns(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """By name, `0.16.8 to 0.17.1`: the first row of each cell among neighbouring releases that are alike.

    A release is in the column before it where nothing that both played changed by what is worth a word.
    """
    sections: list[tuple[list[str], dict[str, Row]]] = []
    for release in releases(rows):
        own = {row["cell"]: row for row in rows if row["deepspeed"] == release}
        both = (
            [(sections[-1][1][cell], row) for cell, row in own.items() if cell in sections[-1][1]] if sections else []
        )
        if both and not any(is_jump(*pair) for pair in both):
            sections[-1][0].append(release)
            sections[-1][1].update(own | sections[-1][1])
        else:
            sections.append(([release], own))
    return {" to ".join(dict.fromkeys([names[0], names[-1]])): column for names, column in sections}


def _peaks(rows: Sequence[Row]) -> Iterator[str]:
    known = columns(rows)
    yield "### Device memory of one GPU, GB"
    yield ""
    lines = [[cell, *(_shown(column.get(cell)) for column in known.values())] for cell in _by_cell(rows)]
    yield from table(["configuration", *known], lines)


def _shown(row: Row | None) -> str:
    if row is None:
        return ""
    return "failed" if row["failure"] else gb(need_bytes(row), 2)


def _played(rows: Sequence[Row]) -> Iterator[str]:
    """How many configurations each release played."""
    counts = Counter(row["deepspeed"] for row in rows)
    by_count: dict[int, list[str]] = {}
    for release, count in counts.items():
        by_count.setdefault(count, []).append(release)
    lines = (f"{count}: {', '.join(names)}" for count, names in sorted(by_count.items(), reverse=True))
    yield from (f"Configurations played: {'; '.join(lines)}.", "")


def is_jump(before: Row, after: Row) -> bool:
    """Whether two releases differ in a configuration by what is worth a word."""
    if before["failure"] or after["failure"]:
        return bool(before["failure"]) != bool(after["failure"])
    change = abs(need_bytes(after) - need_bytes(before))
    return change > max(_LEAST_BYTES, _LEAST_FRACTION * need_bytes(before))


def jumps(rows: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    """Neighbours among the releases that played a configuration, between which it changed by what is worth a word."""
    for own in _by_cell(rows).values():
        played = [row for row in own.values() if not row["failure"]]
        yield from (pair for pair in pairwise(played) if is_jump(*pair))


def _jumps(rows: Sequence[Row]) -> Iterator[str]:
    yield "### What changed"
    yield ""
    yield "By more than 2 % and 50 MB. Categories: what changed at the peak of a steady step."
    yield ""
    sorted_jumps = sorted(jumps(rows), key=lambda pair: releases(rows).index(pair[1]["deepspeed"]))
    lines = [
        [
            f"{before['deepspeed']} to {after['deepspeed']}",
            before["cell"],
            _categories(before, after),
            gb(need_bytes(before), 2),
            gb(need_bytes(after), 2),
            f"{100 * (need_bytes(after) / need_bytes(before) - 1):+.0f} %",
        ]
        for before, after in sorted_jumps
    ]
    yield from table(["upgrade", "configuration", "steady step, GB", "before", "after", "change"], lines, texts=3)


def _categories(before: Row, after: Row) -> str:
    changes = {group: int(after[f"{group}_bytes"]) - int(before[f"{group}_bytes"]) for group in GROUPS}
    large = sorted(
        (group for group in changes if abs(changes[group]) > _LEAST_BYTES), key=lambda one: -abs(changes[one])
    )
    return ", ".join(f"{group} {changes[group] / 1e9:+,.2f}" for group in large) or "the same: start-up changed"


def _failures(rows: Sequence[Row]) -> Iterator[str]:
    failed = [row for row in rows if row["failure"]]
    if failed:
        yield "### What could not be played"
        yield ""
        yield from table(
            ["release", "configuration", "reason"],
            [
                [row["deepspeed"], row["cell"], " ".join(row["failure"].split())[:200].replace("|", "/")]
                for row in failed
            ],
            texts=3,
        )


def _chart(rows: Sequence[Row]) -> str:
    """A cell for each configuration and column: what it needs, coloured by the change from the column before."""
    values = list(_cells_of(rows))
    order = {"x": [name.partition(" ")[0] for name in columns(rows)], "y": list(_by_cell(rows))}
    x = alt.X(
        "release:N",
        sort=order["x"],
        axis=alt.Axis(orient="top", title="DeepSpeed", labelAngle=0, labelExpr="split(datum.label, '|')"),
    )
    y = alt.Y("cell:N", sort=order["y"], axis=alt.Axis(title=None))
    scale = alt.Scale(domain=[-0.5, 0, 0.5], range=["#3b7dd8", "#f2f2f2", "#d9662b"], clamp=True)
    legend = alt.Legend(title="change", format="+.0%")
    shown = alt.Chart(data(values))
    colour = alt.Color("change:Q", scale=scale, legend=legend)
    rects = shown.mark_rect(stroke="var(--paper)").encode(x=x, y=y, color=colour)
    text = shown.mark_text(fontSize=10, color="#1a1a1a").encode(x=x, y=y, text=alt.Text("text:N"))
    label = "Device memory of one GPU by DeepSpeed release, GB"
    plot = layered([rects, text], 62 * len(order["x"]), _CELL_HEIGHT * len(order["y"]), label)
    drawn = resolved(drawing(lambda width: plot, "deepspeed-versions", label).draw())  # noqa: ARG005 -- its own width
    return drawn.replace("<svg ", '<svg style="background:white" ', 1)


def _cells_of(rows: Sequence[Row]) -> Iterator[dict[str, object]]:
    known = columns(rows)
    for cell in _by_cell(rows):
        last: int | None = None
        for name, column in known.items():
            row = column.get(cell)
            if row is None or row["failure"]:
                continue
            need = need_bytes(row)
            change = 0.0 if last is None else need / last - 1
            yield {"cell": cell, "release": name.partition(" ")[0], "text": gb(need, 1), "change": round(change, 4)}
            last = need
