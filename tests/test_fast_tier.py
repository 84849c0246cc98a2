"""`make test-fast` runs what starts no process and imports no framework, and a test that does either fails."""

import importlib
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fast_tier import FRAMEWORKS, GUARD, MARKER, SLOWER, is_fast
from tests.tools.at_least_one import at_least_one
from tests.tools.imports import ROOT


def test_a_test_of_the_tier_that_starts_a_process_fails() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"starts a process \(subprocess.Popen"):
        subprocess.run([sys.executable, "--version"], check=True)
    with pytest.raises(pytest.fail.Exception, match=r"starts a process \(os.posix_spawn"):
        os.posix_spawn(sys.executable, [sys.executable, "--version"], {})
    with pytest.raises(pytest.fail.Exception, match=r"starts a process \(os.fork"):
        os.fork()


@pytest.mark.parametrize("framework", sorted(name for name in FRAMEWORKS if find_spec(name)))
def test_a_test_of_the_tier_that_imports_a_training_framework_fails(
    framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, framework, raising=False)
    with pytest.raises(pytest.fail.Exception, match=f"imports {framework}"):
        importlib.import_module(framework)


def test_to_look_where_a_framework_lies_is_no_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    found = find_spec("torch")
    assert found is not None
    assert Path(found.origin or "").is_file()


def test_outside_of_the_tier_both_are_allowed() -> None:
    with GUARD.watches(wanted=False):
        assert subprocess.run([sys.executable, "-c", ""], check=True).returncode == 0


def test_every_name_that_is_kept_out_of_the_tier_is_that_of_tests() -> None:
    for begin in at_least_one(SLOWER):
        place, _, function = begin.partition("::")
        path = ROOT / place
        assert path.exists(), begin
        assert not function or re.search(rf"^def {function}", path.read_text(encoding="utf-8"), re.MULTILINE), begin


def test_a_test_is_in_the_tier_unless_it_is_named(request: pytest.FixtureRequest) -> None:
    assert is_fast("tests/spec/test_of_tomorrow.py::test_something")
    assert not is_fast("tests/trials/test_of_tomorrow.py::test_something")
    assert request.node.get_closest_marker(MARKER) is not None


def test_the_makefile_runs_the_tier_by_its_marker() -> None:
    rule = Path(ROOT / "Makefile").read_text(encoding="utf-8").partition("\ntest-fast:")[2].partition("\n\n")[0]
    assert f"pytest -m {MARKER} " in rule
