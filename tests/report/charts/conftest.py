"""Frames that charts are drawn from, read from disk as every report reads them."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.report.sample_predictions import predicted_trials
from tests.report.sample_run import (
    RUN_ID,
    SampleTrial,
    completed_trial,
    cpu_trials,
    model,
    sample_trials,
    spec,
    write_run,
)
from zerobench.records.store import load_run
from zerobench.report.charts import figures
from zerobench.report.export.run_frames import RunFrames, run_frames
from zerobench.report.tables.figure import Figure

HOSTILE = '<script>alert(1)</script> & "co" ${x} ]]>\''
NOT_XML = "\x1b[31mred\x00"
"""A name that is markup, code and a template at once, and one that XML cannot hold."""


def frames_of(folder: Path, trials: Sequence[SampleTrial], *, samples: bool = True) -> RunFrames:
    """The frames of a run of these trials in `folder`."""
    return run_frames([load_run(write_run(folder / RUN_ID, trials, samples=samples).path)])


def scaling_trials() -> list[SampleTrial]:
    """Three models on 1, 2 and 4 GPUs at stages 1 and 3, and one model with its global batch held."""
    models = [model(), model("gpt2-1.5b", 48, 1600), model(HOSTILE, 12, 768)]
    weak = [
        completed_trial(
            spec(f"zero{stage}", model=one, gpus_per_node=ranks, micro_batch_size=4), step_s=0.1 * (1 + 0.1 * ranks)
        )
        for one in models
        for ranks in (1, 2, 4)
        for stage in (1, 3)
    ]
    strong = [
        completed_trial(
            spec("zero2", gpus_per_node=ranks, micro_batch_size=16 // ranks, sequence_length=512),
            step_s=1.6 / ranks + 0.1,
        )
        for ranks in (1, 2, 4)
    ]
    return [*weak, *strong]


@pytest.fixture(scope="package")
def gpu_frames(tmp_path_factory: pytest.TempPathFactory) -> RunFrames:
    """The sample run: eight GPUs, a trial for each stage and offload, NVML's samples."""
    return frames_of(tmp_path_factory.mktemp("gpu"), sample_trials())


@pytest.fixture(scope="package")
def cpu_frames(tmp_path_factory: pytest.TempPathFactory) -> RunFrames:
    """A quickstart without a GPU."""
    return frames_of(tmp_path_factory.mktemp("cpu"), cpu_trials(), samples=False)


@pytest.fixture(scope="package")
def predicted_frames(tmp_path_factory: pytest.TempPathFactory) -> RunFrames:
    """Measured CPU trials and their predictions."""
    return frames_of(tmp_path_factory.mktemp("predicted"), predicted_trials(), samples=False)


@pytest.fixture(scope="package")
def scaling_frames(tmp_path_factory: pytest.TempPathFactory) -> RunFrames:
    """Trials over model size and over the number of ranks, one model with a hostile name."""
    return frames_of(tmp_path_factory.mktemp("scaling"), scaling_trials(), samples=False)


@pytest.fixture(scope="package")
def gpu_figures(gpu_frames: RunFrames) -> dict[str, Figure]:
    """The charts of the sample run, by key."""
    return {figure.key: figure for figure in figures(gpu_frames)}


@pytest.fixture(scope="package")
def scaling_figures(scaling_frames: RunFrames) -> dict[str, Figure]:
    """The charts of the run over sizes, by key."""
    return {figure.key: figure for figure in figures(scaling_frames)}
