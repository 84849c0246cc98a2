"""Something is done to a module as soon as somebody imports it."""

import importlib.util
import sys
from typing import Any

import pytest

from zerobench.launch.emulate.inside.after_import import after_import


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module that nobody has imported, and that asks for itself while it loads."""
    (tmp_path / "some_library.py").write_text("import importlib.util\nloaded = importlib.util.find_spec('json')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)
    yield "some_library"
    sys.modules.pop("some_library", None)
    assert sys.meta_path == before


def test_it_is_done_after_the_import_and_once(module):
    seen: list[Any] = []
    after_import(module, lambda imported: seen.append(imported.loaded))
    assert seen == []
    imported = __import__(module)
    assert seen == [imported.loaded]
    importlib.reload(imported)
    assert len(seen) == 1


def test_who_only_asks_whether_it_is_installed_changes_nothing(module):
    seen: list[Any] = []
    after_import(module, seen.append)
    assert importlib.util.find_spec(module) is not None
    assert (seen, module in sys.modules) == ([], False)
    imported = __import__(module)
    assert seen == [imported]


def test_what_is_there_already_is_told_at_once(module):
    imported = __import__(module)
    seen: list[Any] = []
    after_import(module, seen.append)
    assert seen == [imported]
