"""Pages and a browser, made once for all the tests that look at them."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.report.documents.page.browser import Browser, missing
from tests.report.sample_predictions import predicted_trials
from tests.report.sample_run import RUN_ID, SampleTrial, sample_trials, write_run
from zerobench.records.store import load_run
from zerobench.report.documents.page import page_html
from zerobench.report.export.run_frames import RunFrames, run_frames

ENVIRONMENT = {
    "captured_at_s": 1_767_322_800.0,
    "hostname": "node-1",
    "versions": {"zerobench": "0.1.0", "torch": "2.13.0", "deepspeed": "0.19.8", "triton": None},
    "driver": {"version": "580.65.06", "cuda_version": "13.0", "reason": None, "faults": []},
    "gpus": [{"index": 0, "uuid": "GPU-0", "name": "NVIDIA H100 80GB HBM3", "total_bytes": 80 * 2**30}],
    "topology": [{"gpus": ["GPU-0", "GPU-1"], "pcie": "NODE", "nvlinks": 18, "through": "nvswitch"}],
    "machine": {"memory_bytes": 2**40, "kernel": "6.1.0", "numa_nodes": [{"node": 0, "cores": "0-63"}]},
    "variables": {"NCCL_DEBUG": "WARN"},
}


def write_frames(
    folder: Path,
    trials: Sequence[SampleTrial],
    sweep: str = "name: sample\n",
    environment: Any = ENVIRONMENT,
    *,
    samples: bool = True,
) -> RunFrames:
    """The frames of a run of `trials`, written into `folder` and read back."""
    run = write_run(folder, trials, samples=samples)
    run.sweep.write_text(sweep, encoding="utf-8")
    run.environment.write_text(json.dumps(environment), encoding="utf-8")
    return run_frames([load_run(folder)])


@pytest.fixture(scope="session")
def sample_frames(tmp_path_factory: pytest.TempPathFactory) -> RunFrames:
    """Measured trials of eight GPUs; one out of memory, one hung, one skipped, one with wrong losses."""
    return write_frames(tmp_path_factory.mktemp("sample") / RUN_ID, sample_trials())


@pytest.fixture(scope="session")
def predicted_frames(tmp_path_factory: pytest.TempPathFactory) -> RunFrames:
    """Trials both measured and predicted."""
    return write_frames(tmp_path_factory.mktemp("predicted") / RUN_ID, predicted_trials())


@pytest.fixture(scope="session")
def sample_page(sample_frames: RunFrames, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the measured trials."""
    path = tmp_path_factory.mktemp("pages") / "sample.html"
    path.write_text(page_html(sample_frames), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The browser; tests that need one are skipped where none is installed."""
    if reason := missing():
        pytest.skip(reason)
    started = Browser()
    yield started
    started.driver.quit()
