"""Mutation testing: one small change of a module at a time, and whether the tests that mirror the module notice.

    python benchmarks/mutants/mutants.py [PACKAGE ...] [--each 8 | --all] [--seed 1] [--processes 2] [--table FILE]

Changes are Cosmic Ray's. Each is tried in a fork of one process that has imported what the tests need, by the tests
that mirror the module alone (mirror.py). Verdicts are kept under reports/, so that a run that was cut short goes on,
and one after more tests were written does only what those can change.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.mutants.mirror import PACKAGES, Mirror, Package, mirror_of, without
from benchmarks.mutants.positions import Mutant, mutants_of, sample
from benchmarks.mutants.state import Key, Verdicts, key_of
from benchmarks.mutants.table import Row, survivors, table
from benchmarks.mutants.trial import SECONDS, Case, Round, Verdict, begin, verdict_of
from tests.fast_tier import MARKER, is_fast
from tests.tools.imports import ROOT, module_name
from zerobench.common.errors import UserError, unknown_choice
from zerobench.records.folder import write_whole

VERDICTS = ROOT / "reports" / "mutants.jsonl"
SLOWER_TESTS = f"not {MARKER} and not alone"
OWN = ("zerobench", "tests", "benchmarks", "__main__")


@dataclass(frozen=True)
class Asked:
    """The command line."""

    packages: list[Package]
    each: int | None
    """Mutants of a module; None is all."""
    seed: int
    processes: int
    tries: bool
    """Whether mutants without a verdict are tried."""


@dataclass(frozen=True)
class Waiting:
    """A mutant to be tried."""

    mutant: Mutant
    case: Case
    key: Key


def run(asked: Asked, verdicts: Verdicts) -> list[Row]:
    """Try what has no verdict yet, and tell all. Raises UserError: the tests fail without any mutant."""
    rows = []
    for package in asked.packages:
        for module in package.modules():
            if asked.tries:
                _try_module(package, module, asked, verdicts)
            rows.append(_row(package, module, asked, verdicts))
    return rows


def _try_module(package: Package, module: Path, asked: Asked, verdicts: Verdicts) -> None:
    """In a process of its own, which imports what its mutants do not change and is gone before the next module's."""
    waiting = list(_waiting(package, module, asked, verdicts))
    if not waiting:
        return
    child = os.fork()
    if not child:
        status = 1
        try:
            _import(imported_unmutated(waiting[0].case))
            _import(without(module, mirror_of(module)))
            _try_all(waiting, asked.processes, verdicts)
            status = 0
        except UserError as error:
            print(error, file=sys.stderr, flush=True)
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if status:
        raise UserError(f"{module.relative_to(ROOT)}: its mutants were not tried to the end")
    verdicts.read()


def imported_unmutated(case: Case) -> list[str]:
    """Modules of others that the tests import. Raises UserError: without any mutant the tests do not pass."""
    with tempfile.TemporaryDirectory() as folder:
        names, said = Path(folder) / "imported", Path(folder) / "said"
        _, status, used = os.wait4(begin(replace(case, source=None), names, said), 0)
        if verdict_of(status) is not Verdict.SURVIVED:
            printed = said.read_text(encoding="utf-8", errors="replace").splitlines()
            failed = "; ".join(line for line in printed if line.startswith(("FAILED", "ERROR"))) or printed[-1:]
            raise UserError(f"{case.name}: its tests fail as it is, so nothing can be said of its mutants: {failed}")
        if used.ru_utime + used.ru_stime > SECONDS / 2:
            raise UserError(
                f"{case.name}: its tests as it is take more than half of a mutant's {SECONDS} s; see JUDGES"
            )
        imported = names.read_text(encoding="utf-8").splitlines()
    return [name for name in imported if name.partition(".")[0] not in OWN]


def _import(names: Iterable[str]) -> None:
    for name in names:
        with contextlib.suppress(Exception):  # some are made by others, and none is needed here
            importlib.import_module(name)


def _chosen(module: Path, asked: Asked) -> list[Mutant]:
    name, code = module.relative_to(ROOT).as_posix(), module.read_text(encoding="utf-8")
    return sample(code, mutants_of(name, code), asked.each, asked.seed)


def _waiting(package: Package, module: Path, asked: Asked, verdicts: Verdicts) -> Iterator[Waiting]:
    tests, code = mirror_of(module), module.read_text(encoding="utf-8")
    key = key_of(module, tests)
    rounds = rounds_of(package, tests)
    for mutant in _chosen(module, asked):
        if verdicts.of(mutant, key) is None:
            yield Waiting(mutant, Case(module, module_name(module), mutant.source(code), rounds), key)


def rounds_of(package: Package, tests: Mirror) -> tuple[Round, ...]:
    """Which tests run one after the other. Files that are wholly outside of the fast tier are not read in its name."""
    nearest, others = (Round(tuple(filter(is_fast, files)), MARKER) for files in (tests.nearest, tests.others))
    return (nearest, Round(tests.nearest, SLOWER_TESTS), others) if package.needs_torch else (nearest, others)


def _try_all(waiting: list[Waiting], processes: int, verdicts: Verdicts) -> None:
    begun_s, running, done = time.monotonic(), dict[int, Waiting](), 0
    for case in [*waiting, *[None] * processes]:
        while running and (case is None or len(running) >= processes):
            process, status = os.wait()
            ended = running.pop(process)
            verdict = verdict_of(status)
            verdicts.add(ended.mutant, ended.key, verdict)
            done += 1
            each_s = (time.monotonic() - begun_s) / done
            print(f"{done} of {len(waiting)}, {each_s:.1f} s each: {ended.mutant.name} {verdict}", flush=True)
        if case is not None:
            running[begin(case.case)] = case


def _row(package: Package, module: Path, asked: Asked, verdicts: Verdicts) -> Row:
    key = key_of(module, mirror_of(module))
    verdict = verdicts.of if asked.tries else verdicts.last
    found = {mutant: verdict(mutant, key) for mutant in _chosen(module, asked)}
    code = module.read_text(encoding="utf-8")
    return Row(package.name, module.relative_to(ROOT).as_posix(), len(mutants_of(module.name, code)), found)


def _packages(names: list[str]) -> list[Package]:
    by_name = {package.name: package for package in PACKAGES}
    for name in names:
        if name not in by_name:
            raise unknown_choice("package", name, by_name)
    return [by_name[name] for name in names or by_name]


def _asked(arguments: argparse.Namespace) -> Asked:
    each = None if arguments.all else arguments.each
    return Asked(_packages(arguments.packages), each, arguments.seed, arguments.processes, not arguments.known)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="of zerobench; all of mirror.py unless named")
    parser.add_argument("--each", type=int, default=8, help="mutants of each module (default: %(default)s)")
    parser.add_argument("--all", action="store_true", help="every mutant: hours")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="mutants at a time (default: %(default)s)")
    parser.add_argument(
        "--trust-killed", action="store_true", help="try survivors alone again; for while tests are being added"
    )
    parser.add_argument("--known", action="store_true", help="try nothing, and tell what was last said of each")
    parser.add_argument("--table", type=Path, help="write the table there")
    return parser


def main() -> int:
    """Run the command line."""
    arguments = _parser().parse_args()
    try:
        asked = _asked(arguments)
        rows = run(asked, Verdicts(VERDICTS, trusts_the_killed=arguments.trust_killed))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    how = "every mutant" if asked.each is None else f"at most {asked.each} of each module, seed {asked.seed}"
    text = table(rows, f"{how}, what was last said of each" if arguments.known else how)
    print(*survivors(rows), text, sep="\n")
    if arguments.table:
        write_whole(arguments.table, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
