"""Kill rates as a table, and the survivors one by one."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import groupby

from benchmarks.mutants.positions import Mutant, change_of
from benchmarks.mutants.trial import Verdict
from tests.tools.imports import ROOT

GOAL = 0.9


@dataclass(frozen=True)
class Row:
    """What became of one module's mutants."""

    package: str
    module: str
    possible: int
    """Mutants that the module has in all."""
    verdicts: Mapping[Mutant, Verdict | None]
    """None: it was not tried."""

    def count(self, verdict: Verdict) -> int:
        """How many ended so."""
        return sum(given is verdict for given in self.verdicts.values())


@dataclass(frozen=True)
class Rate:
    """Killed among those that could be."""

    killed: int
    survived: int

    def __str__(self) -> str:
        tried = self.killed + self.survived
        return f"{100 * self.killed / tried:.1f} %" if tried else "-"


def rate(rows: Iterable[Row]) -> Rate:
    """Of several modules together."""
    held = list(rows)
    return Rate(*(sum(row.count(verdict) for row in held) for verdict in (Verdict.KILLED, Verdict.SURVIVED)))


def table(rows: Sequence[Row], how: str) -> str:
    """Markdown: a line for each package, then for each module."""
    names = ("python", "cosmic-ray", "pytest", "hypothesis")
    versions = [f"{name} {platform.python_version() if name == 'python' else version(name)}" for name in names]
    lines = [
        "# Mutants, and how many the tests kill",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {', '.join(versions)}; {how}. Goal: {GOAL:.0%} or more in each package.",
        "Stillborn mutants cannot be imported and count nowhere. What of the survivors is argued: survivors.md.",
        "",
        "| | mutants | tried | stillborn | killed | survived | rate |",
        "|---|---|---|---|---|---|---|",
    ]
    for package, of_package in groupby(rows, key=lambda row: row.package):
        modules = list(of_package)
        lines.append(_line(f"**{package}**", modules))
        lines += [_line(f"`{row.module.removeprefix('zerobench/')}`", [row]) for row in modules]
    return "\n".join(lines) + "\n"


def _line(name: str, rows: Sequence[Row]) -> str:
    tried = sum(verdict is not None for row in rows for verdict in row.verdicts.values())
    share = rate(rows)
    stillborn = sum(row.count(Verdict.STILLBORN) for row in rows)
    cells = (name, sum(row.possible for row in rows), tried, stillborn, share.killed, share.survived, share)
    return f"| {' | '.join(map(str, cells))} |"


def survivors(rows: Iterable[Row]) -> Iterator[str]:
    """Each mutant that lived: where, and what it changes."""
    for row in rows:
        code = (ROOT / row.module).read_text(encoding="utf-8")
        for mutant, verdict in row.verdicts.items():
            if verdict is Verdict.SURVIVED:
                before, after = change_of(code, mutant)
                yield f"{mutant.name}\n    line {mutant.span[0][0]}: {before}\n    {after}"
