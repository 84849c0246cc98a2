"""What a change of a script's command costs in expected time."""

from typing import Any

import pytest

from tests.report.sample_run import completed_trial
from tests.tools.known import known
from zerobench.app.search.tried import script_row, tried_slower
from zerobench.config.derived.cluster import read_cluster
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import OwnScript, TrialSpec
from zerobench.estimate.time.predicted_speed import predicted_step
from zerobench.launch.emulate.changes import for_device, for_host
from zerobench.launch.emulate.drafts import Draft
from zerobench.launch.emulate.options import Option

CLUSTER = read_cluster(gpu="h100", gpus="8", host_memory="2TB")
DS: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 1},
}
OPTIONS = (Option(dest="gradient_checkpointing", names=["--gradient_checkpointing"], is_flag=True, value=False),)


def seen(*unknown: str, **axes: Any) -> TrialSpec:
    """A script's work as its tracker saw it."""
    asked: dict[str, Any] = {"model": resolve_model("llama-7b"), "strategy": "zero1", "sequence_length": 2048}
    asked |= {"micro_batch_size": 4, "gradient_accumulation_steps": 2, "own": OwnScript(name="train", unknown=unknown)}
    return TrialSpec.model_validate(asked | axes)


def costs(
    trial: TrialSpec, ds: dict[str, Any] | None, options: tuple[Option, ...] = OPTIONS
) -> dict[str, float | None]:
    start = Draft(("python", "train.py", "ds.json"), ds, 2, options)
    return {
        ", ".join(one.says).partition(" (")[0]: tried_slower(trial, start, one.draft, CLUSTER)
        for one in for_device(start)
        if len(one.says) == 1
    }


def test_each_change_is_told_with_what_it_costs() -> None:
    found = costs(seen(), DS)
    known = {says: cost for says, cost in found.items() if cost is not None}
    assert found == known
    assert 0.01 < known["micro batch 1 instead of 4"] < 0.5
    assert 0.15 < known["activation checkpointing"] < 0.4
    assert 0.01 < known["ZeRO stage 2"] < 0.2, "it reduces in each of both micro-batches"
    assert abs(known["ZeRO stage 3"]) < 0.1
    assert known["optimizer states offloaded to the host"] > 0.3


def test_an_option_of_the_script_counts_as_the_configuration_does_and_by_the_token_where_the_batch_shrinks() -> None:
    options = (*OPTIONS, Option(dest="batch_size", names=["--batch_size"], is_flag=False, value=4))
    by_option = costs(seen(), {"train_micro_batch_size_per_gpu": "auto"}, options)
    [cost] = [cost for says, cost in by_option.items() if says.startswith("micro batch 1")]
    told = known(costs(seen(), DS)["micro batch 1 instead of 4"])
    assert cost is not None
    assert told <= cost < 1.5, "fewer tokens share an update"


def test_states_that_come_back_from_the_host_make_a_step_faster() -> None:
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    start = Draft(("python", "train.py", "ds.json"), {**DS, "zero_optimization": zero}, 2)
    trial = seen(strategy="zero2", offload_optimizer="cpu", optimizer="cpu_adam")
    [cost] = [known(tried_slower(trial, start, one.draft, CLUSTER)) for one in for_host(start)]
    assert cost < -0.2


def test_what_copies_of_memory_that_is_not_page_locked_cost_nobody_knows() -> None:
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
    start = Draft(("python", "train.py", "ds.json"), {**DS, "zero_optimization": zero}, 2)
    trial = seen(strategy="zero2", offload_optimizer="cpu", optimizer="cpu_adam")
    told = {one.says[0]: tried_slower(trial, start, one.draft, CLUSTER) for one in for_host(start, counts_locks=True)}
    assert told["pin_memory false"] is None
    assert told["optimizer states on the GPU"] is not None


@pytest.mark.parametrize("trial", [seen("sequence_length"), seen(precision="fp32"), seen(attention="eager")])
def test_nothing_is_told_of_work_that_is_not_known(trial: TrialSpec) -> None:
    assert set(costs(trial, DS).values()) == {None}


def test_the_page_of_a_script_expects_the_step_that_emulate_tells() -> None:
    trial = seen("hyperparameters", evidence="emulated", prediction={"gpu": "H100 SXM"}, gpus_per_node=8)
    told = known(script_row(trial, CLUSTER))
    assert told.expected is not None
    shown = known(predicted_step(completed_trial(trial)).expected)
    assert (shown.step_s, shown.low_s, shown.high_s) == (
        told.expected.step_s,
        told.expected.low_s,
        told.expected.high_s,
    )


def test_the_expected_step_of_a_script_plays_no_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = seen("hyperparameters", evidence="emulated", prediction={"gpu": "H100 SXM"}, gpus_per_node=8)
    monkeypatch.delattr("zerobench.estimate.memory.record.allocator_rows")
    assert known(predicted_step(completed_trial(trial)).expected).step_s > 0
