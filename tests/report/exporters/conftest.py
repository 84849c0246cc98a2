"""One small run on disk that every export is read back from: a measured, a failed, a skipped and a hostile trial."""

from __future__ import annotations

import pytest

from tests.report.sample_run import completed_trial, failed_trial, model, skipped_trial, spec, write_run
from zerobench import store
from zerobench.records import Failure, Phase
from zerobench.report.exporters.exported import ExportedTrial, exported_trials

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
def exported(run: store.Run) -> list[ExportedTrial]:
    """Its trials, ready to be exported."""
    return list(exported_trials(run))
