"""What needs compiled kernels is run once they can be there."""

import ast
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels import FIXTURE
from tests.schedule import ORDER, SLURM, WITHOUT_KERNELS, place_of
from tests.tools.imports import ROOT, tree_of

FILES = sorted((ROOT / "tests").rglob("test_*.py"))


def asks_for_kernels(path: Path) -> bool:
    """Whether a test or a fixture of the file takes the fixture that waits until all are compiled."""
    return any(
        (isinstance(node, ast.arg) and node.arg == FIXTURE)
        or (isinstance(node, ast.Call) and ast.unparse(node) == f"request.getfixturevalue('{FIXTURE}')")
        for node in ast.walk(tree_of(path))
    )


def test_no_process_waits_for_the_compiler_while_there_is_other_work() -> None:
    waiting = [path.relative_to(ROOT).as_posix() for path in FILES if asks_for_kernels(path)]
    assert len(waiting) >= 6, "the fixture has lost its users"
    assert [name for name in waiting if place_of(name) <= len(WITHOUT_KERNELS)] == []


def test_all_that_is_scheduled_is_there() -> None:
    assert [name for name in ORDER if name != SLURM and not (ROOT / name).exists()] == []


FILE_OF_FAST_TESTS = "tests/config/derived/test_batch.py"


@pytest.mark.parametrize("path", ["tests/rank/ledger/test_ledger.py", FILE_OF_FAST_TESTS])
def test_every_file_can_be_named_to_the_fast_tier(path: str) -> None:
    ended = collect(path, "-m", "fast")
    assert ended.returncode == (0 if path == FILE_OF_FAST_TESTS else 5), ended.stdout  # 5: none is selected
    assert re.search(r"\d+/\d+ tests collected|no tests collected \(\d+ deselected\)|\d+ tests collected", ended.stdout)


def test_an_order_that_is_drawn_holds_the_same_tests_and_is_repeated_by_its_number() -> None:
    files = ["tests/config/derived/test_batch.py", "tests/config/trial/test_plain.py"]
    usual, drawn, again, other = (names(collect(*files, *more)) for more in ((), *(("--shuffle", n) for n in "778")))
    assert drawn == again
    assert len({tuple(usual), tuple(drawn), tuple(other)}) == 3
    assert sorted(usual) == sorted(drawn) == sorted(other)
    assert len(list(itertools.groupby(drawn, key=lambda name: name.partition("::")[0]))) == len(files)


def test_a_random_order_says_its_number() -> None:
    assert re.search(
        r"^order: make test ORDER=\d+$", collect(FILE_OF_FAST_TESTS, "-v", "--shuffle", "random").stdout, re.MULTILINE
    )


def collect(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    environ = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120, check=False)


def names(ended: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in ended.stdout.splitlines() if "::" in line]
