"""What reports hold of a trial while they go through a run of any length."""

import itertools
import tracemalloc
from pathlib import Path

from tests.report.sample_run import completed_trial, spec, write_run
from zerobench.records.store import load_run
from zerobench.records.trials import TrialLosses, can_be_compared


def test_what_is_kept_of_a_trial_to_compare_its_losses_is_a_few_kilobytes(tmp_path: Path) -> None:
    trials = [completed_trial(spec("zero1", gpus_per_node=1, sequence_length=128 * (1 + n))) for n in range(40)]
    run = load_run(write_run(tmp_path / "run", trials, samples=False).path)
    known = [TrialLosses.extract(trial) for trial in itertools.islice(run.trials(), 10)]
    tracemalloc.start()
    try:
        known += [TrialLosses.extract(trial) for trial in itertools.islice(run.trials(), 10, None)]
        kept = tracemalloc.get_traced_memory()[0] / 30
    finally:
        tracemalloc.stop()
    assert len(known) == 40
    assert kept < 6_000, "a record of one rank alone is ten times as large"


def test_only_a_run_with_measured_and_predicted_trials_has_anything_to_compare() -> None:
    measured, predicted = completed_trial(spec("zero1")), completed_trial(spec("zero1", evidence="simulated"))
    assert can_be_compared([measured, predicted])
    assert not can_be_compared([measured, measured])
    assert not can_be_compared([predicted])
