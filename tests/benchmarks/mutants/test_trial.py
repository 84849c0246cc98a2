"""A mutant is killed by a test that fails, survives where all pass, and is stillborn where it cannot be imported."""

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.mutants.mutants import imported_unmutated
from benchmarks.mutants.trial import Case, Round, Verdict, begin, verdict_of
from zerobench.common.errors import UserError

MODULE = "def double(value: int) -> int:\n    return value * 2\n"
TEST = "from mutated_module import double\n\n\ndef test_it() -> None:\n    assert double(2) == 4\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module, and a test of it."""
    (tmp_path / "mutated_module.py").write_text(MODULE)
    (tmp_path / "test_mutated_module.py").write_text(TEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = fast: one tier\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def verdict(folder: Path, source: str | None, markers: str = "") -> Verdict:
    test = str(folder / "test_mutated_module.py")
    case = Case(folder / "mutated_module.py", "mutated_module", source, (Round((), ""), Round((test,), markers)))
    return verdict_of(os.waitpid(begin(case), 0)[1])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (None, Verdict.SURVIVED),
        (MODULE.replace("* 2", "+ 2"), Verdict.SURVIVED),
        (MODULE.replace("* 2", "* 3"), Verdict.KILLED),
        (MODULE + "import os; os._exit(0)\n", Verdict.KILLED),
        (MODULE + "1 / 0\n", Verdict.STILLBORN),
        (MODULE.replace("return", "while True: pass\n    return").replace("double(", "other("), Verdict.KILLED),
    ],
    ids=["as it is", "equivalent there", "noticed", "leaves quietly", "not importable", "another name"],
)
def test_a_mutant_is_judged_by_its_tests(folder: Path, source: str | None, expected: Verdict) -> None:
    assert verdict(folder, source) is expected


def test_a_module_that_this_process_has_imported_already_is_tried_as_the_mutant(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = ModuleType("mutated_module")
    vars(imported).update(double=lambda value: value * 2)
    monkeypatch.setitem(sys.modules, imported.__name__, imported)
    assert verdict(folder, MODULE.replace("* 2", "* 3")) is Verdict.KILLED


def test_tests_of_another_tier_say_nothing(folder: Path) -> None:
    assert verdict(folder, MODULE.replace("* 2", "* 3"), markers="fast") is Verdict.SURVIVED


def test_what_was_imported_is_told_and_the_module_on_disk_is_untouched(folder: Path) -> None:
    case = Case(
        folder / "mutated_module.py", "mutated_module", None, (Round((str(folder / "test_mutated_module.py"),), ""),)
    )
    os.waitpid(begin(case, folder / "imported"), 0)
    assert "mutated_module" in (folder / "imported").read_text().splitlines()
    assert (folder / "mutated_module.py").read_text() == MODULE


def test_a_mutant_that_a_signal_ends_is_killed(folder: Path) -> None:
    source = MODULE.replace("return", "import os, signal\n    os.kill(os.getpid(), signal.SIGKILL)\n    return")
    assert verdict(folder, source) is Verdict.KILLED


def test_a_process_that_a_test_starts_has_the_mutant_too(folder: Path) -> None:
    asked = "[sys.executable, '-c', 'import mutated_module; print(mutated_module.double(2))']"
    printed = f"subprocess.check_output({asked}, text=True, cwd={str(folder)!r})"
    text = f"import subprocess, sys\n\n\ndef test_it() -> None:\n    assert {printed} == '4\\n'\n"
    (folder / "test_mutated_module.py").write_text(text)
    assert verdict(folder, None) is Verdict.SURVIVED
    assert verdict(folder, MODULE.replace("* 2", "+ 2")) is Verdict.SURVIVED
    assert verdict(folder, MODULE.replace("* 2", "* 3")) is Verdict.KILLED


def test_of_a_module_as_it_is_the_failing_test_is_named(folder: Path) -> None:
    (folder / "test_mutated_module.py").write_text(TEST.replace("== 4", "== 5"))
    case = Case(
        folder / "mutated_module.py", "mutated_module", None, (Round((str(folder / "test_mutated_module.py"),), ""),)
    )
    with pytest.raises(UserError, match=r"its tests fail as it is.*FAILED test_mutated_module\.py::test_it"):
        imported_unmutated(case)
