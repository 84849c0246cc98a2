"""Faults that somebody thought of, planted one at a time: for where drawn mutants would cost hours.

    python benchmarks/mutants/planted.py [WORD ...] [--table benchmarks/mutants/planted.md]

planted.toml holds them: a line of a module, what becomes of it, and the tests that must fail then. Each is tried as a
mutant is (trial.py), in a fork; what the fork starts imports the fault too.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.mutants.mirror import mirror_of
from benchmarks.mutants.table import GOAL, Rate
from benchmarks.mutants.trial import Case, Round, Verdict, begin, verdict_of
from tests.tools.imports import ROOT, module_name
from zerobench.records.folder import write_whole

FAULTS = Path(__file__).with_name("planted.toml")
MARKERS = "not alone and not extra"


@dataclass(frozen=True)
class Fault:
    """One change of one line."""

    module: str
    """From `zerobench/`."""
    before: str
    after: str
    tests: tuple[str, ...]
    """Files or tests; without any, those that mirror the module."""

    @property
    def path(self) -> Path:
        """The module's file."""
        return ROOT / "zerobench" / self.module

    def source(self) -> str:
        """The module with the fault in it. Raises ValueError: the line is not there, or there twice."""
        code = self.path.read_text(encoding="utf-8")
        if code.count(self.before) != 1:
            raise ValueError(f"{self.module}: {self.before!r} is there {code.count(self.before)} times, and not once")
        return code.replace(self.before, self.after)


def faults() -> list[Fault]:
    """All of planted.toml, in its order."""
    entries = tomllib.loads(FAULTS.read_text(encoding="utf-8"))["fault"]
    return [Fault(entry["module"], entry["before"], entry["after"], tuple(entry.get("tests", ()))) for entry in entries]


def judged(fault: Fault) -> Verdict:
    """What becomes of it."""
    tests = fault.tests or mirror_of(fault.path).nearest
    case = Case(fault.path, module_name(fault.path), fault.source(), (Round(tests, MARKERS),))
    return verdict_of(os.waitpid(begin(case), 0)[1])


def table(judged: Sequence[tuple[Fault, Verdict]]) -> str:
    """Markdown: a rate for each package, then each fault."""
    lines = [
        "# Faults planted by hand, and which of them the tests notice",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}. Goal: {GOAL:.0%} or more in each package. planted.toml has their tests.",
        "",
        "| | planted | killed | rate |",
        "|---|---|---|---|",
    ]
    judged = sorted(judged, key=_package)
    for package, same in groupby(judged, key=_package):
        verdicts = [verdict for _, verdict in same]
        killed = verdicts.count(Verdict.KILLED)
        rate = Rate(killed, len(verdicts) - killed)
        lines.append(f"| **{package}** | {len(verdicts)} | {killed} | {rate} |")
    lines += ["", "| module | line | with the fault | |", "|---|---|---|---|"]
    lines += [
        f"| `{fault.module}` | {_cell(fault.before)} | {_cell(fault.after)} | {verdict} |" for fault, verdict in judged
    ]
    return "\n".join(lines) + "\n"


def _package(judged: tuple[Fault, Verdict]) -> str:
    return judged[0].module.rpartition("/")[0]


def _cell(code: str) -> str:
    return f"`{' '.join(code.split()).replace('|', chr(92) + '|')}`" if code.strip() else "(nothing)"


def main() -> int:
    """Run the command line; 1 where a fault survived."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", help="only faults whose module or line has one of them")
    parser.add_argument("--table", type=Path, help="write the table there")
    arguments = parser.parse_args()
    for name in ("torch", "transformers", "deepspeed"):  # once, and not in every fork
        importlib.import_module(name)
    asked = [
        one
        for one in faults()
        if not arguments.words or any(word in f"{one.module} {one.before}" for word in arguments.words)
    ]
    found = []
    for fault in asked:
        found.append((fault, judged(fault)))
        print(f"{found[-1][1]}: {fault.module}: {' '.join(fault.before.split())}", flush=True)
    if arguments.table:
        write_whole(arguments.table, table(found))
    return int(any(verdict is not Verdict.KILLED for _, verdict in found))


if __name__ == "__main__":
    sys.exit(main())
