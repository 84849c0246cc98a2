"""What a sweep may ask of checkpoints and faults, what is refused, and what the second launch of a trial is."""

from pathlib import Path
from typing import Any

import pytest

from tests.config.machines import CPU
from tests.config.rules.refusals import each_refused
from tests.tools.known import known
from tests.tools.refusals import one_line
from zerobench.config.axes.axes import read_axis
from zerobench.config.derived.resume import needs_universal, resumed_trial
from zerobench.config.derived.strategy import STRATEGIES
from zerobench.config.models.presets import resolve_model
from zerobench.config.rules.rules import Skip, find_skip
from zerobench.config.rules.situation import Situation
from zerobench.config.sweep.expand import expand
from zerobench.config.sweep.sweep import load_sweep
from zerobench.config.trial.checkpoint import CheckpointSpec
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec

TWO_BLOCKS = ModelSpec(name="two blocks", hf_config={"model_type": "llama", "num_hidden_layers": 2})
STEPS = {"warmup": 1, "memory": 1, "timed": 4}


def spec(strategy: str = "zero2", checkpoint: dict[str, Any] | None = None, **fields: Any) -> TrialSpec:
    """Eight steps on two ranks, saved after every second one."""
    asked = {"every_steps": 2} | (checkpoint or {})
    defaults: dict[str, Any] = {"model": resolve_model("llama-10m"), "gpus_per_node": 2, "steps": STEPS}
    return TrialSpec.model_validate({**defaults, "strategy": strategy, "checkpoint": asked, **fields})


def skip(trial: TrialSpec) -> Skip | None:
    return find_skip(Situation(trial, CPU, None))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_that_saves_can_be_saved_and_one_of_its_ranks_killed(strategy: str) -> None:
    ranks = 1 if STRATEGIES[strategy].is_reference else 2
    asked = {"fault": {"rank": ranks - 1, "step": 5}}
    found = skip(spec(strategy, asked, gpus_per_node=ranks, precision="fp32"))  # the precision that all of them have
    if STRATEGIES[strategy].checkpoint is None:
        assert found is not None
        assert found.rule != "fault_out_of_place"
    else:
        assert found is None


test_what_cannot_be_saved_or_resumed_is_refused_with_the_reason = each_refused(
    skip,
    (spec(checkpoint={"every_steps": 8}), "nothing_to_resume", "every 8 steps of 8"),
    (spec(checkpoint={"fault": {"rank": 2, "step": 5}}), "fault_out_of_place", "rank 2 of 2"),
    (spec(checkpoint={"fault": {"rank": 0, "step": 8}}), "fault_out_of_place", "(step 2) to step 7"),
    (
        spec(checkpoint={"every_steps": 4, "fault": {"rank": 0, "step": 3}}),
        "fault_out_of_place",
        "(step 4) to step 7",
    ),
    (spec(checkpoint={"fault": {"rank": 0, "step": 2}}), "fault_out_of_place", "in its first 3 steps"),
    (
        spec(checkpoint={"resume_world_size": 1}, optimizer="sgd"),
        "universal_checkpoint_needs_adam",
        "needs Adam's moments",
    ),
    (spec(checkpoint={"resume_world_size": 3}), "resumed_cannot_run", "2 micro-batches cannot be divided among 3"),
    (spec("parameter-server", {"resume_world_size": 1}), "resumed_cannot_run", "it needs 2 or more"),
    (
        spec(offload_optimizer="nvme", strategy="zero3", nvme_path="/nvme"),
        "checkpoint_of_swapped_states",
        "use cpu",
    ),
    (
        spec(checkpoint={"resume_world_size": 1}, ds_config={"tensor_parallel.autotp_size": 2}),
        "resumed_cannot_run",
        "1 ranks cannot be divided into groups of 2",
    ),
    (
        spec("zero3", {"resume_world_size": 2}, gpus_per_node=4, ds_config={"tensor_parallel.autotp_size": 2}),
        "universal_checkpoint_takes_no_cut_partitions",
        "use zero1 or zero2",
    ),
    (
        spec("fsdp", {"resume_world_size": 1}, mics_shard_size=2),
        "resumed_cannot_run",
        "1 ranks cannot be divided into groups of 2",
    ),
    (
        spec("pipeline", {"resume_world_size": 4}, gpus_per_node=2, gradient_accumulation_steps=2, model=TWO_BLOCKS),
        "resumed_cannot_run",
        "its 2 blocks cannot be divided among 4 stages",
    ),
    (
        spec("pipeline", {"resume_world_size": 3}, pipeline_schedule="deepspeed", gradient_accumulation_steps=3),
        "checkpoint_bound_to_its_ranks",
        "optimizer states are saved per stage",
    ),
)


@pytest.mark.parametrize("evidence", ["solo", "simulated", "formula"])
def test_a_prediction_writes_nothing_and_is_joined_with_what_does(evidence: str) -> None:
    predicted = spec("zero3", {"fault": {"rank": 7, "step": 1}}, evidence=evidence)
    assert skip(predicted) is None
    assert predicted.config_hash == spec("zero3", {"fault": {"rank": 7, "step": 1}}).config_hash


def test_the_second_launch_on_other_ranks_has_the_same_global_batch() -> None:
    trial = spec(checkpoint={"resume_world_size": 1}, gradient_accumulation_steps=3)
    resumed = resumed_trial(trial)
    assert (resumed.world_size, resumed.gradient_accumulation_steps) == (1, 6)
    assert (resumed.global_batch_size, resumed.parity_hash) == (trial.global_batch_size, trial.parity_hash)
    assert skip(trial) is None
    assert resumed_trial(spec()) == spec()
    on_more = spec(checkpoint={"resume_world_size": 6}, gradient_accumulation_steps=3)
    assert resumed_trial(on_more).gradient_accumulation_steps == 1


@pytest.mark.parametrize(
    ("strategy", "ranks", "universal"),
    [("zero1", 1, True), ("zero3", 1, True), ("zero2", 2, False), ("zero0", 1, False), ("fsdp", 1, False)],
)
def test_only_partitions_of_zero_on_other_ranks_need_a_universal_checkpoint(
    strategy: str, ranks: int, universal: bool
) -> None:
    assert needs_universal(spec(strategy, {"resume_world_size": ranks})) is universal


@pytest.mark.parametrize(
    ("every", "fault", "step"), [(2, None, 6), (3, None, 6), (7, None, 7), (2, 5, 4), (2, 4, 4), (4, 7, 4)]
)
def test_the_last_checkpoint_is_the_last_one_with_steps_left_or_before_the_fault(
    every: int, fault: int | None, step: int
) -> None:
    asked = CheckpointSpec.model_validate(
        {"every_steps": every, "fault": None if fault is None else {"rank": 0, "step": fault}}
    )
    assert asked.last_step(8) == step


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (0, "checkpoint.every_steps: 0; choices: an integer from 1"),
        ("often", "checkpoint.every_steps: 'often'"),
        ({"every_steps": 0}, "every_steps: Input should be greater than or equal to 1"),
        ({"every_steps": True}, "every_steps: Input should be a valid integer"),
        ({"evry_steps": 2}, "evry_steps: unknown field; did you mean 'every_steps'?"),
        ({"every_steps": 2, "fault": {"rank": 0}}, "fault.step: Field required"),
    ],
)
def test_a_wrong_value_is_refused_by_name(raw: object, told: str) -> None:
    with one_line(told):
        read_axis("checkpoint", raw, "axes")


def test_a_checkpoint_is_named_by_when_it_is_saved_and_how_it_is_gone_on_with() -> None:
    assert str(CheckpointSpec(every_steps=4)) == "every 4 steps"
    asked = {"every_steps": 4, "resume_world_size": 1, "fault": {"rank": 1, "step": 6}}
    assert str(CheckpointSpec.model_validate(asked)) == "every 4 steps; resumed on 1; rank 1 killed at 6"


def test_a_number_a_mapping_and_null_are_values_of_the_axis() -> None:
    whole = {"every_steps": 4, "fault": {"rank": 1, "step": 6}}
    assert read_axis("checkpoint", [None, 4, whole], "axes") == [
        None,
        CheckpointSpec(every_steps=4),
        CheckpointSpec.model_validate(whole),
    ]


def test_where_files_lie_is_no_part_of_the_work_and_what_is_saved_is() -> None:
    here, there = spec(), spec(checkpoint={"folder": "/nvme", "keep": True})
    assert here.config_hash == there.config_hash
    assert len({spec(checkpoint=c).trial_id for c in ({}, {"every_steps": 3}, {"resume_world_size": 1})}) == 3
    without = spec().model_copy(update={"checkpoint": None})
    assert without.config_hash != here.config_hash
    assert without.parity_hash == here.parity_hash


def test_the_reference_dies_and_goes_on_as_the_one_process_that_it_is(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "name: s\naxes: {model: llama-10m, strategy: [single, ddp], world_size: 2, evidence: measured,\n"
        "  checkpoint: {every_steps: 2, resume_world_size: 1, folder: here, fault: {rank: 1, step: 7}}}\n"
    )
    single, ddp = (known(one.trial.checkpoint) for one in expand(load_sweep(path), CPU))
    assert (single.fault and single.fault.rank, single.resume_world_size) == (0, None)
    assert (ddp.fault and ddp.fault.rank, ddp.resume_world_size) == (1, 1)
    assert ddp.folder == str(tmp_path / "here")
