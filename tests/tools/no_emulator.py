"""A machine on which nobody has made the emulated GPU, whatever the tests' own machine has."""

from __future__ import annotations

from typing import NoReturn

import pytest

from zerobench.app.search import plan_world
from zerobench.common.errors import UserError

MISSING = "emulator: not set up for torch 2.13.0; run: zerobench setup emulator"


@pytest.fixture
def no_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    """`zerobench plan` finds no emulated GPU."""

    def find() -> NoReturn:
        raise UserError(MISSING)

    monkeypatch.setattr(plan_world, "find_emulator", find)
