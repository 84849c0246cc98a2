"""Trials for the stand-in worker, and the runner's folder around them."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.nvml_standin.standin import Standin
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.launcher import MARK
from zerobench.records.folder import RunFolder, TrialFolder

HERE = Path(__file__).parent / "run"

TrialMaker = Callable[..., TrialSpec]


def _make_trial(name: str = "standin", acts: dict[int, str] | None = None, **fields: object) -> TrialSpec:
    config = {"model_type": "standin", "acts": {str(rank): act for rank, act in (acts or {}).items()}}
    work = {"strategy": "single", "gpus_per_node": 2, "timeout_s": 120.0} | fields
    return TrialSpec.model_validate({"model": ModelSpec(name=name, hf_config=config), **work})


def _put(trial: TrialSpec, run: Path) -> TrialFolder:
    folder = RunFolder(run).trial(trial.trial_id)
    folder.path.mkdir(parents=True)
    folder.spec.write_text(trial.model_dump_json())
    return folder


def _marked_processes(under: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK, "").startswith(str(under)) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def _wait_until(condition: Callable[[], object], patience_s: float = 60.0) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def make_trial() -> TrialMaker:
    """Makes a trial whose rank `r` does `acts[r]`, by default `complete` (standin_worker.ACTS)."""
    return _make_trial


@pytest.fixture(scope="session")
def put() -> Callable[[TrialSpec, Path], TrialFolder]:
    """Makes the folder of a trial under a run's, with the trial's spec in it."""
    return _put


@pytest.fixture(scope="session")
def marked_processes() -> Callable[[Path], list[psutil.Process]]:
    """Finds every living process of any trial whose folder lies under a path, however it hides from its parents."""
    return _marked_processes


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., None]:
    """Waits until a condition holds, and fails the test where it never does."""
    return _wait_until


@pytest.fixture(scope="session")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Standin:
    """A driver that tells of the GPUs of a scenario."""
    return Standin.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session", autouse=True)
def _standins_can_be_started() -> Iterator[None]:
    """Ranks find the stand-in workers, and the package even where it is not installed."""
    before = os.environ.get("PYTHONPATH")
    paths = [str(HERE), str(HERE.parents[2]), *([before] if before else [])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    yield
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before
