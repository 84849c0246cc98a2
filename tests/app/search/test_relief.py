"""Where nothing fits as asked, what an expert would try first is tried, and the answer says which of it was needed."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.tools.known import known
from zerobench.app.search.outcome import Outcome, outcome
from zerobench.app.search.plan import read_plan
from zerobench.app.search.plan_request import PlanRequest
from zerobench.app.search.relief import _Request
from zerobench.config.sweep.plan import offloaded
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.observer import Observer
from zerobench.records.store import load_run


@pytest.fixture(autouse=True)
def _without_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program of the machine is asked what it is."""
    monkeypatch.setattr("zerobench.app.search.predict.capture_environment", dict)


ON_ONE = PlanRequest(model="gpt2-774m", gpus="1", gpu="rtx 4090", host_memory="64GB", evidence="formula", stage="1")


def planned(request: PlanRequest, reports: Path, *, relieves: bool = True) -> Outcome:
    return outcome(read_plan(replace(request, reports=reports)), reports, Observer(), relieves=relieves)


def best(made: Outcome) -> TrialSpec:
    return known(made.best).trial.spec


def trials_in(made: Outcome) -> list[TrialSpec]:
    return [trial.spec for trial in load_run(made.path).trials()]


def test_where_something_fits_as_asked_nothing_else_is_tried(tmp_path: Path) -> None:
    made = planned(replace(ON_ONE, sequence_length="256"), tmp_path)
    assert made.decided.relief is None
    assert not any(spec.activation_checkpointing for spec in trials_in(made))
    assert len(trials_in(made)) == 2


def test_a_micro_batch_that_is_too_large_is_made_smaller_at_the_same_global_batch(tmp_path: Path) -> None:
    made = planned(replace(ON_ONE, micro_batch="64", gradient_accumulation="2", sequence_length="1024"), tmp_path)
    spec, relief = best(made), known(made.decided.relief)
    assert spec.global_batch_size == 128
    assert spec.micro_batch_size < 64
    assert f"micro batch {spec.micro_batch_size}" in relief.needed
    assert known(made.decided.choice).reason
    assert made.keep().reason.startswith(f"nothing fits as asked; with {relief.needed}, {relief.num_fitting} fit")


def test_checkpointing_alone_is_named_where_it_is_all_that_is_needed(tmp_path: Path) -> None:
    two = replace(ON_ONE, model="gpt2-1.5b", gpus="2", stage="2", host_memory="4GB", sequence_length="1024")
    made = planned(replace(two, micro_batch="2"), tmp_path)
    asked = [row for row in made.decided.rows if not row.trial.spec.activation_checkpointing]
    assert {row.trial.spec.micro_batch_size for row in asked if row.has_room} == set()
    assert best(made).activation_checkpointing == "every-4", "of the checkpointing that fits, what recomputes least"
    assert known(made.decided.relief).needed == "activation checkpointing"
    assert made.keep().configuration == known(made.best).label


def test_of_those_that_promise_to_fit_the_fastest_is_tried_first(tmp_path: Path) -> None:
    made = planned(replace(ON_ONE, micro_batch="64", gradient_accumulation="2", sequence_length="1024"), tmp_path)
    roomy = [row for row in made.decided.rows if row.has_room]
    times = [known(row.expected).step_s for row in roomy]
    assert known(known(made.best).expected).step_s <= 1.01 * min(times)
    assert best(made).activation_checkpointing is not True, "recomputing all of it costs most"


def test_where_nothing_helps_the_answer_lists_what_was_tried(tmp_path: Path) -> None:
    request = replace(ON_ONE, model="gpt3-175b", micro_batch="2", sequence_length="1024", stage="2")
    made = planned(request, tmp_path)
    relief = known(made.decided.relief)
    assert (made.best, relief.needed) == (None, "")
    words = ["activation checkpointing", "micro batches down to 1", "offload to the host", "smaller buckets"]
    assert [word for word in words if word not in relief.tried] == []
    assert made.keep().reason == f"nothing fits with 5% room, as asked or with {relief.tried}"
    asked = {item.trial.config_hash for item in read_plan(request).planned}
    assert {spec.config_hash for spec in trials_in(made)} > asked, (
        "the nearest variants are played, for what is lacking"
    )


def test_a_global_batch_with_a_micro_batch_that_does_not_fit_gets_a_smaller_one(tmp_path: Path) -> None:
    request = replace(ON_ONE, global_batch="128", micro_batch="128", sequence_length="1024")
    made = planned(request, tmp_path)
    assert best(made).global_batch_size == 128
    assert best(made).micro_batch_size < 128
    assert known(made.decided.relief).needed.startswith("micro batch ")


def test_a_file_of_ones_own_keeps_its_batch_and_offload_and_is_checkpointed(tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(
        '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 4}'
    )
    request = replace(ON_ONE, ds_config=str(tmp_path / "own.json"), stage=None, sequence_length="1024", gpu="rtx 3090")
    made = planned(request, tmp_path / "reports")
    assert known(made.decided.relief).needed == "activation checkpointing"
    assert {spec.micro_batch_size for spec in trials_in(made)} == {4}
    assert {spec.ds_config_file for spec in trials_in(made)} == {str(tmp_path / "own.json")}


def test_one_configuration_alone_is_answered_without_others(tmp_path: Path) -> None:
    made = planned(replace(ON_ONE, model="gpt3-175b", sequence_length="1024"), tmp_path, relieves=False)
    assert (made.best, made.decided.relief) == (None, None)
    assert len(trials_in(made)) == 2


@pytest.mark.parametrize(("stage", "count"), [(0, 0), (1, 1), (2, 1), (3, 3)])
def test_each_stage_is_offloaded_to_host_memory_as_far_as_deepspeed_does(stage: int, count: int) -> None:
    [trial, *_] = [item.trial for item in read_plan(replace(ON_ONE, stage=str(stage), sequence_length="1024")).planned]
    variants = list(offloaded(trial))
    assert len(variants) == count
    assert {variant.offload_optimizer for variant in variants} <= {"none", "cpu"}
    assert all(variant.offloaded_to for variant in variants)


def test_work_without_a_closed_form_is_checkpointed_and_then_split_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zerobench.app.search.relief.asked_of_formulas", lambda *_: [])
    made = planned(replace(ON_ONE, micro_batch="64", sequence_length="1024", host_memory="4GB"), tmp_path)
    spec = best(made)
    assert (spec.activation_checkpointing, spec.micro_batch_size, spec.gradient_accumulation_steps) == (True, 1, 64)
    assert known(made.decided.relief).needed == "activation checkpointing and micro batch 1"
    tried = [(one.micro_batch_size, one.activation_checkpointing) for one in trials_in(made)]
    assert tried.index((64, True)) < tried.index((1, True))


def test_a_sweep_whose_points_do_not_fit_is_relieved_in_its_own_run(tmp_path: Path) -> None:
    (tmp_path / "large.yaml").write_text(
        "name: large\naxes: {model: gpt2-774m, strategy: [zero1, zero2], micro_batch_size: 64, sequence_length: 1024}\n"
    )
    request = PlanRequest(sweep=str(tmp_path / "large.yaml"), gpus="1", gpu="rtx 4090", evidence="formula")
    made = planned(request, tmp_path / "reports")
    assert made.path.name.startswith("large_")
    assert best(made).global_batch_size == 64
    assert known(made.decided.relief).needed
    assert {spec.strategy for spec in trials_in(made)} == {"zero1", "zero2"}


def test_keys_that_one_of_the_requested_trials_has_are_no_change() -> None:
    bare, keyed = (SimpleNamespace(ds_config=keys, offloaded_to=()) for keys in ({}, {"zero_optimization.stage": 1}))
    request = _Request([bare, keyed], [1], [False])  # type: ignore[list-item] # all that it reads
    same = {"activation_checkpointing": False, "micro_batch_size": 1, "offloaded_to": ()}
    tried = [SimpleNamespace(ds_config=keys, **same) for keys in (keyed.ds_config, {"zero_optimization.stage": 2})]
    assert [request.changes(one) for one in tried] == [(), ("other DeepSpeed keys",)]  # type: ignore[arg-type] # all that it reads
