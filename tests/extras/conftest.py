"""Tests of strategies in environments of their own: all marked `extra`, skipped where nobody has made it."""

from pathlib import Path

import pytest

from zerobench.common.environments import environment

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder; a file's name begins with its environment's."""
    for item in items:
        if item.path.parent != _HERE:
            continue
        name = item.path.stem.removeprefix("test_").partition("_")[0]
        item.add_marker("extra")
        if not environment(name).is_made:
            item.add_marker(pytest.mark.skip(reason=f"its environment is not set up: zerobench setup {name}"))
