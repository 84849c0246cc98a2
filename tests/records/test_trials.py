"""What reports hold of a trial while they go through a run of any length."""

import itertools
import tracemalloc
from pathlib import Path

import pytest

from tests.report.sample_run import (
    GIB,
    SampleTrial,
    completed_trial,
    failed_trial,
    model,
    refused_trial,
    spec,
    trial_record,
    write_run,
)
from tests.tools.known import known
from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Status
from zerobench.config.models.parameters import count_parameters
from zerobench.records.records import Failure, ParameterTensor, Recovery
from zerobench.records.store import load_run
from zerobench.records.trials import (
    all_ranks_ran,
    can_be_compared,
    case_of,
    completed,
    is_whole,
    losses_alone,
    num_params,
    num_trained,
    parameter_counts,
    parameters_built,
    recorded_grad_norms,
    recorded_losses,
    roles,
    uses_dropout,
    workers,
)


def test_what_is_kept_of_a_trial_to_compare_its_losses_is_a_few_kilobytes(tmp_path: Path) -> None:
    trials = [completed_trial(spec("zero1", gpus_per_node=1, sequence_length=128 * (1 + n))) for n in range(40)]
    run = load_run(write_run(tmp_path / "run", trials, samples=False).path)
    known = [losses_alone(trial) for trial in itertools.islice(run.trials(), 10)]
    tracemalloc.start()
    try:
        known += [losses_alone(trial) for trial in itertools.islice(run.trials(), 10, None)]
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


def test_figures_are_of_all_the_work_where_it_completed_or_was_played_again_with_room() -> None:
    done = completed_trial(spec("zero1"))
    refused = refused_trial(done, needed_bytes=90 * GIB)
    asked_only = failed_trial(spec("zero1"), Failure(message="x", bytes_asked=GIB, bytes_free=GIB))
    crashed = SampleTrial(done.spec, trial_record(done.spec, Status.CRASH), done.ranks)
    assert [is_whole(one) for one in (done, refused, asked_only, crashed)] == [True, True, False, False]
    assert [completed(one) for one in (done, refused, asked_only, crashed)] == [True, False, False, False]


@pytest.mark.parametrize(("evidence", "world_size", "ran"), [
    ("measured", 1, True), ("measured", 8, True), ("solo", 1, True), ("solo", 2, False), ("solo", 8, False),
    ("simulated", 1, False), ("emulated", 1, False), ("formula", 1, False),
])  # fmt: skip
def test_each_rank_was_a_process_where_it_was_measured_or_solo_and_alone(
    evidence: str, world_size: int, ran: bool
) -> None:
    asked = spec("zero1", evidence=evidence, gpus_per_node=world_size)
    assert all_ranks_ran(SampleTrial(asked, trial_record(asked), [])) is ran


def _recovery(killed_at_s: float | None) -> Recovery:
    times = {"first_ended_at_s": 9.0, "killed_at_s": killed_at_s}
    sizes = {"world_size": 1, "from_step": 1, "steps_done": 2}
    return Recovery.model_validate({"status": "completed", "losses": [7.0, 6.0], **times, **sizes})


def test_losses_and_norms_are_those_of_the_first_rank_that_has_any() -> None:
    trial = completed_trial(spec("zero1", gpus_per_node=3))
    trial = trial.with_rank(0, losses=[], grad_norms=[]).with_rank(1, losses=[3.0, 2.0], grad_norms=[1.0, None])
    assert recorded_losses(trial) == [3.0, 2.0]
    assert recorded_grad_norms(trial) == [1.0, None]
    nobody = trial.with_ranks(losses=[], grad_norms=[])
    assert (recorded_losses(nobody), recorded_grad_norms(nobody)) == ((), ())


def test_where_a_rank_was_killed_on_purpose_the_launch_that_went_on_has_the_losses_and_nobody_the_norms() -> None:
    trial = completed_trial(spec("zero1", gpus_per_node=1)).with_ranks(losses=[3.0], grad_norms=[1.0])
    killed, whole = (trial.with_record(recovery=_recovery(at_s)) for at_s in (5.0, None))
    assert (recorded_losses(killed), recorded_grad_norms(killed)) == ([7.0, 6.0], ())
    assert (recorded_losses(whole), recorded_grad_norms(whole)) == ([3.0], [1.0])
    begun_at_0 = trial.with_record(recovery=_recovery(0.0))
    assert recorded_losses(begun_at_0) == [7.0, 6.0]


def test_what_is_kept_for_comparing_has_the_same_losses_norms_and_ending() -> None:
    trial = completed_trial(spec("zero1", gpus_per_node=2))
    kept = losses_alone(trial)
    assert list(recorded_losses(kept)) == list(recorded_losses(trial))
    assert list(recorded_grad_norms(kept)) == list(recorded_grad_norms(trial))
    assert completed(kept)
    silent = losses_alone(trial.with_ranks(losses=[]))
    assert (recorded_losses(silent), recorded_grad_norms(silent)) == ((), ())


def test_a_server_is_no_worker_and_comes_first() -> None:
    trial = completed_trial(spec("zero1", gpus_per_node=3)).with_rank(0, role="server")
    assert roles(trial) == ["server", "worker"]
    assert [rank.rank for rank in workers(trial)] == [1, 2]
    plain = completed_trial(spec("zero1", gpus_per_node=2))
    assert (roles(plain), len(workers(plain))) == (["worker"], 2)


def test_parameters_are_those_that_the_first_rank_built_else_those_of_the_closed_form() -> None:
    by_form = known(count_parameters(model()))
    built = ParameterTensor(total=30, trainable=10, by_component={"attention": 10, "lora": 20})
    trial = completed_trial(spec("zero1", gpus_per_node=2)).with_rank(0, parameters=None).with_rank(1, parameters=built)
    assert parameters_built(trial) is built
    assert (num_trained(trial), num_params(trial)) == (10, 30)
    assert known(parameter_counts(trial)).other == 20
    nobody = trial.with_ranks(parameters=None)
    assert (parameters_built(nobody), num_trained(nobody)) == (None, None)
    assert parameter_counts(nobody) == by_form
    assert num_params(nobody) == by_form.total


def test_a_config_that_lost_a_key_is_the_records_fault() -> None:
    broken = model().model_copy(update={"hf_config": {"model_type": "gpt2", "n_layer": "many"}})
    trial = completed_trial(spec("zero1", gpus_per_node=1)).with_ranks(parameters=None)
    torn = SampleTrial(trial.spec.model_copy(update={"model": broken}), trial.record, trial.ranks)
    with pytest.raises(UserError, match="model 'gpt2-345m': hf_config: no model can be built from it"):
        num_params(torn)


def test_a_model_draws_in_training_where_its_config_drops_anything() -> None:
    still, drawing = (
        completed_trial(spec("zero1", gpus_per_node=1, model=one))
        for one in (model(), model().model_copy(update={"hf_config": {**model().hf_config, "resid_pdrop": 0.1}}))
    )
    assert (uses_dropout(still), uses_dropout(drawing)) == (False, True)


def test_the_case_of_a_trial_has_its_own_world_and_both_counts_of_parameters() -> None:
    built = ParameterTensor(total=30, trainable=10, by_component={"attention": 30})
    case = known(case_of(completed_trial(spec("zero2", num_nodes=2, gpus_per_node=4)).with_ranks(parameters=built)))
    assert (case.world_size, case.num_params, case.num_trained) == (8, 30, 10)
    gone = completed_trial(spec("zero2", gpus_per_node=1))
    without = SampleTrial(gone.spec.model_copy(update={"ds_config_file": "/nowhere/ds.json"}), gone.record, gone.ranks)
    assert case_of(without) is None
