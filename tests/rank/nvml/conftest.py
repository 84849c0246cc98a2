"""The stand-in driver, built once for all tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.nvml_standin.standin import Standin


@pytest.fixture(scope="session")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Standin:
    return Standin.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session", autouse=True)
def all_devices_visible() -> Iterator[None]:
    """Whatever the user's shell shows to CUDA, the stand-in's devices are the trial's unless a test says otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        yield
