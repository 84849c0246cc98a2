"""What needs compiled kernels is run once they can be there."""

import ast
from pathlib import Path

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
