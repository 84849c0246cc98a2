"""Docstrings begin with their subject, and functions have names of verbs and nouns: counted wing by wing."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_architecture import WINGS
from tests.tools.imports import ROOT, python_files, tree_of

LIMITS: dict[str, tuple[int, int]] = {
    "app": (13, 11),
    "launch": (61, 21),
    "report": (16, 45),
    "rank": (5, 4),
    "emulator": (0, 0),
    "estimate": (95, 45),
    "records": (0, 0),
    "config": (0, 1),
    "common": (0, 0),
}
"""By wing: most docstrings that open with a question word or "Of", and most functions named for a preposition or a
question. The limits only fall: lower a wing's whenever some of it was rewritten."""

OPENING = re.compile(r"(What|Whether|Which|How|Who|Whose|Why|Where|When|Of)\b")
_QUESTIONS = "what|which|who|whose|whom|how|why|whether|where|when"
_PREPOSITIONS = "of|as|by|at|beside|between|without"
_BEFORE_A_NOUN = "in|for|from|to|with|on|into|under|over|after|before"
NAME = re.compile(rf"_*(({_QUESTIONS}|{_PREPOSITIONS}|{_BEFORE_A_NOUN})_.*|{_QUESTIONS}|{_PREPOSITIONS})")


def question_docstrings(path: Path, tree: ast.Module) -> Iterator[str]:
    """`file:line: docstring` of each that opens with a question word or "Of"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            if OPENING.match(text):
                yield f"{path}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}"


def question_names(path: Path, tree: ast.Module) -> Iterator[str]:
    """`file:line: name` of each function named for a preposition or a question."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and NAME.fullmatch(node.name):
            yield f"{path}:{node.lineno}: {node.name}"


def test_every_wing_has_limits() -> None:
    assert set(LIMITS) == set(WINGS)


@pytest.mark.parametrize("wing", LIMITS)
def test_no_more_docstrings_open_with_a_question_than_did(wing: str) -> None:
    files = python_files(f"zerobench/{wing}")
    assert files
    found = [line for path in files for line in question_docstrings(path.relative_to(ROOT), tree_of(path))]
    assert len(found) <= LIMITS[wing][0], found


@pytest.mark.parametrize("wing", LIMITS)
def test_no_more_functions_are_named_for_a_preposition_or_a_question_than_were(wing: str) -> None:
    files = python_files(f"zerobench/{wing}")
    assert files
    found = [line for path in files for line in question_names(path.relative_to(ROOT), tree_of(path))]
    assert len(found) <= LIMITS[wing][1], found


SAMPLE = '''"""What a module is for."""
class A:
    """Whether it is one."""
    def of(self): ...
    def at_peak(self): "Of the peak."
    def office(self): "Office hours."
async def _why_not(): "Return the reason."
def without(): ...
def into(): ...
def forward(): "Where it leads."
'''


def test_the_reader_finds_docstrings_and_names_of_modules_classes_and_functions() -> None:
    path, tree = Path("a.py"), ast.parse(SAMPLE)
    assert sorted(question_docstrings(path, tree)) == [
        "a.py:10: Where it leads.",
        "a.py:1: What a module is for.",
        "a.py:2: Whether it is one.",
        "a.py:5: Of the peak.",
    ]
    assert sorted(question_names(path, tree)) == [
        "a.py:4: of",
        "a.py:5: at_peak",
        "a.py:7: _why_not",
        "a.py:8: without",
    ]
