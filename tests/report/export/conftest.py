"""One small run on disk that every export is read back from: a measured, a failed, a skipped and a hostile trial."""

import pytest

from tests.report.sample_run import GIB, MIB, completed_trial, failed_trial, model, skipped_trial, spec, write_run
from zerobench.common.vocabulary import Category, Phase, StepKind
from zerobench.records import store
from zerobench.records.folder import write_whole
from zerobench.records.records import Failure, MemoryCourse, MemoryCourses
from zerobench.report.export.exported import ExportRow, exported_trials

HOSTILE = 'a"b\\c\n# HELP x\nfake_metric{x="1"} 9\n\x1b[31m<script>{{7*7}}'
"""A model's name that ends a label, begins a metric, steers a terminal and is markup."""


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> store.Run:
    """The run, as the store reads it."""
    out = Failure(phase=Phase.BACKWARD, message="the device ran out of memory", bytes_asked=2**34)
    two = {"gpus_per_node": 2}
    trials = [
        completed_trial(spec("zero1", **two), step_s=0.218),
        completed_trial(spec("zero2", **two, ds_config={"zero_optimization.reduce_bucket_size": 500_000_000})),
        failed_trial(spec("zero0", micro_batch_size=64, **two), out),
        skipped_trial(spec("zero2", offload_param="cpu", **two), "offload_param_needs_stage_3"),
        completed_trial(spec("zero3", model=model(HOSTILE, layers=2, width=128), **two)),
    ]
    return store.load_run(write_run(tmp_path_factory.mktemp("export") / "run", trials, samples=False).path)


@pytest.fixture(scope="session")
def exported(run: store.Run) -> list[ExportRow]:
    """Its trials, ready to be exported."""
    return list(exported_trials(run))


@pytest.fixture(scope="session")
def kept(run: store.Run) -> store.Run:
    """The same run, of whose first trial two ranks kept their memory over start-up and a step."""
    trial = run.plan.trials[0].trial_id
    folder = run.folder.trial(trial)
    for rank, largest in enumerate((700 * MIB, 5 * GIB)):
        write_whole(folder.memory_courses(rank), _courses(trial, rank, largest).model_dump_json())
    return run


def _courses(trial_id: str, rank: int, largest: int) -> MemoryCourses:
    """Parameters that stay, gradients that grow and go in two parts, and a temporary that is there between them."""
    held = {
        Phase.INIT: {Category.PARAMETERS: [0, 300 * MIB, 200 * MIB]},
        Phase.FORWARD: {Category.PARAMETERS: [200 * MIB] * 3, Category.ACTIVATIONS: [0, 40 * MIB, 60 * MIB]},
        Phase.BACKWARD: {
            Category.PARAMETERS: [200 * MIB] * 3,
            Category.ACTIVATIONS: [60 * MIB, 10 * MIB, 0],
            Category.GRADIENTS: [0, largest, largest // 2],
        },
        Phase.STEP: {Category.PARAMETERS: [200 * MIB] * 3, Category.GRADIENTS: [largest // 2, 0, 0]},
    }
    phases = [
        MemoryCourse(
            step=StepKind.FIRST if phase is Phase.INIT else StepKind.STEADY,
            phase=phase,
            num_events=20,
            events=[0, 7, 20],
            sizes_bytes=sizes,
            sites={Category.GRADIENTS: "deepspeed/runtime/engine.py:backward"},
        )
        for phase, sizes in reversed(held.items())  # as they were first entered is not as they ran
    ]
    return MemoryCourses(trial_id=trial_id, rank=rank, phases=phases)
