"""Which modules are mutated, and which tests each of them has: those that mirror it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.mutants.judges import JUDGES
from tests.fast_tier import is_fast
from tests.tools.imports import ROOT, imports_of, module_name, python_files


@dataclass(frozen=True)
class Package:
    """Modules whose kill rate is one figure."""

    name: str
    """Their folder or file, from `zerobench/`."""
    needs_torch: bool
    """Whether the nearest tests that are not in the fast tier hold it too: with torch, or with ranks."""

    def modules(self) -> list[Path]:
        """Its modules that hold any code of their own."""
        place = ROOT / "zerobench" / self.name
        return [place] if place.suffix == ".py" else python_files(f"zerobench/{self.name}")


PACKAGES = (
    Package("estimate/memory", needs_torch=True),
    Package("config/trial", needs_torch=True),
    Package("config/models", needs_torch=True),
    Package("config/hardware", needs_torch=True),
    Package("config/derived", needs_torch=True),
    Package("config/axes", needs_torch=True),
    Package("config/rules", needs_torch=True),
    Package("config/sweep", needs_torch=True),
    Package("config/deepspeed", needs_torch=False),
    Package("report/export", needs_torch=False),
    Package("launch/run/outcome.py", needs_torch=False),
    Package("launch/emulate/figures.py", needs_torch=False),
    Package("estimate/clock", needs_torch=False),
    Package("estimate/time", needs_torch=False),
    Package("estimate/allocator", needs_torch=True),
    Package("rank/ledger", needs_torch=True),
    Package("rank/nvml", needs_torch=True),
    Package("rank/strategies", needs_torch=True),
)


@dataclass(frozen=True)
class Mirror:
    """The tests of a module."""

    nearest: tuple[str, ...]
    """The file that mirrors it and the files of its folder that reach it by the fewest imports."""
    others: tuple[str, ...]
    """The other files of that folder that reach it at all: they run where the nearest killed nothing."""


def mirror_of(module: Path) -> Mirror:
    """The test files that mirror `module`: of the folder that mirrors its own, the nearest to it first.

    Where none of that folder reaches it, those of the fast tier elsewhere that import it themselves; where judges are
    named for it, these alone.
    """
    if judges := JUDGES.get(module.relative_to(ROOT / "zerobench").as_posix()):
        return Mirror(judges, ())
    folder = _mirrored_folder(module)
    own = folder / f"test_{module.stem}.py"
    reached = _reaching(module, _test_files(folder)) or _reaching(module, _fast_files(), most=1)
    least = min(reached.values(), default=0)
    nearest = [path for path, steps in reached.items() if steps == least or path == own]
    nearest.sort(key=lambda path: path != own)
    others = sorted(set(reached) - set(nearest), key=lambda path: (reached[path], path))
    return Mirror(*(tuple(path.relative_to(ROOT).as_posix() for path in paths) for paths in (nearest, others)))


def file_of(test: str) -> Path:
    """The file of a test, or of files of tests that are named as pytest does."""
    return ROOT / test.partition("::")[0]


def _reaching(module: Path, files: Iterable[Path], most: int | None = None) -> dict[Path, int]:
    """Of some test files, how many imports lead from each to the module: `most` of them at most."""
    steps = {path: _distance(path, module) for path in files}
    return {
        path: distance for path, distance in steps.items() if distance is not None and distance <= (most or distance)
    }


def _test_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("test_*.py"))


def _fast_files() -> list[Path]:
    return [path for path in _test_files(ROOT / "tests") if is_fast(path.relative_to(ROOT).as_posix())]


def _mirrored_folder(module: Path) -> Path:
    """`tests/a/b` for `zerobench/a/b/c.py`, or the nearest folder above that there is."""
    folder = ROOT / "tests" / module.parent.relative_to(ROOT / "zerobench")
    while not folder.is_dir():
        folder = folder.parent
    return folder


def _distance(test: Path, module: Path) -> int | None:
    """How many imports lead from a test to the module; None where none do."""
    wanted = module_name(module)
    waiting, seen = deque([(test, 0)]), {test}
    while waiting:
        path, steps = waiting.popleft()
        for name in _modules_imported(path):
            if name == wanted:
                return steps + 1
            if (found := _by_name().get(name)) and found not in seen:
                seen.add(found)
                waiting.append((found, steps + 1))
    return None


def without(module: Path, tests: Mirror) -> list[str]:
    """The project's modules that `tests` come to import and that do not import `module`: the same for its mutants."""
    wanted = module_name(module)
    reached = set[str]()
    for name in (*tests.nearest, *tests.others):
        reached |= _started_by(module_name(file_of(name)))
    mine = {name for name in reached if name.startswith("zerobench")}
    return sorted(name for name in mine if wanted not in _started_by(name))


@cache
def _started_by(name: str) -> frozenset[str]:
    """The project's modules that an import of `name` runs, itself and the packages above among them."""
    waiting, seen = [name], set[str]()
    while waiting:
        module = waiting.pop()
        if module in seen or module not in _by_name():
            continue
        seen.add(module)
        waiting += _ancestry(module)
        for imported in imports_of(_by_name()[module]):
            if imported.at_start:
                waiting += _ancestry(imported.name)
    return frozenset(seen)


def _ancestry(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: n + 1]) for n in range(len(parts))]


@cache
def _by_name() -> dict[str, Path]:
    return {module_name(path): path for path in python_files("zerobench", "tests", "benchmarks")}


@cache
def _modules_imported(path: Path) -> frozenset[str]:
    """The project's modules that a file names in an import; `from a.b import c` names a.b.c where that is one."""
    names = (imported.name for imported in imports_of(path))
    return frozenset(name if name in _by_name() else name.rpartition(".")[0] for name in names)
