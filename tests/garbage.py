"""Keeps Python's garbage collector from what the session itself holds to its end.

Ten thousand tests and the modules that they import are a million objects, of which none is let go. Searches for
unreachable cycles took more than half of the time in which tests are collected, and then half a second each.
"""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest

from zerobench.common.collection import no_collection


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """No search while tests are collected; what there is then is searched once and never again."""
    with no_collection():
        result = yield
    gc.collect()
    gc.freeze()
    return result
