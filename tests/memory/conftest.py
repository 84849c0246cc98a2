"""The stand-in driver, built once for all tests of this folder."""

from __future__ import annotations

import pytest

from tests.nvml_standin.standin import Standin


@pytest.fixture(scope="session")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Standin:
    return Standin.build(tmp_path_factory.mktemp("nvml"))
