"""The cost in time of a change of a script's command, from its own play."""

from typing import Any

import pytest

from tests.report.sample_run import SampleTrial, trial_record
from tests.tools.known import known
from tests.tools.rank_records import rank_record
from zerobench.app.search.tried import changed_fields, tried_slower
from zerobench.config.derived.cluster import read_cluster
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import OwnScript, TrialSpec
from zerobench.estimate.clock.trace import PhaseStart, Recorder
from zerobench.launch.emulate.changes import for_device, for_host
from zerobench.launch.emulate.drafts import Draft
from zerobench.launch.emulate.figures import Try
from zerobench.launch.emulate.options import Option
from zerobench.launch.emulate.part import Account, End
from zerobench.records.records import RankRecord

CLUSTER = read_cluster(gpu="h100", gpus="8", host_memory="2TB")
DS: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 1},
}
OPTIONS = (Option(dest="gradient_checkpointing", names=["--gradient_checkpointing"], is_flag=True, value=False),)


def seen(**axes: Any) -> TrialSpec:
    """A script's work as its tracker saw it: hardly anything of it is known."""
    asked: dict[str, Any] = {"model": resolve_model("llama-7b"), "strategy": "zero1", "gpus_per_node": 8}
    asked |= {"own": OwnScript(name="train", unknown=("model", "precision", "sequence_length"))}
    return TrialSpec.model_validate(asked | axes)


def rank(micro_batches: int, nbytes: int) -> RankRecord:
    """A rank that moves so many bytes in each of its micro-batches."""
    recorder = Recorder()
    for _ in range(micro_batches):
        recorder.add(PhaseStart("forward"))
        recorder.kernel(0, moved_bytes=nbytes)
    return rank_record("train", world_size=8, step_trace=known(recorder.trace()).pack())


def slower(start: Draft, after: Draft, usual: RankRecord, changed: RankRecord | None) -> float | None:
    spec = seen()
    attempt = Try(("a change",), Account(rank=0, end=End.STOPPED), drafts=(start, after), record=changed)
    return tried_slower(SampleTrial(spec, trial_record(spec), [usual]), attempt, CLUSTER)


def start(ds: dict[str, Any] | None = None, options: tuple[Option, ...] = OPTIONS) -> Draft:
    return Draft(("python", "train.py", "ds.json"), DS if ds is None else ds, 2, options)


def by_name(draft: Draft) -> dict[str, Draft]:
    return {one.says[0].partition(" (")[0]: one.draft for one in for_device(draft) if len(one.says) == 1}


def test_each_change_of_a_command_is_a_change_of_its_trial() -> None:
    now = start()
    fields = {name: changed_fields(seen(), now, draft) for name, draft in by_name(now).items()}
    assert fields["micro batch 1 instead of 4"] == {"micro_batch_size": 1, "gradient_accumulation_steps": 8}
    assert fields["activation checkpointing"] == {"activation_checkpointing": True}
    assert fields["ZeRO stage 3"] == {"strategy": "zero3"}
    assert fields["optimizer states offloaded to the host"]["offload_optimizer"] == "cpu"


def test_a_change_costs_what_its_own_step_takes_longer() -> None:
    cost = known(
        slower(start(), by_name(start())["activation checkpointing"], rank(2, 3 * 10**11), rank(2, 4 * 10**11))
    )
    assert cost == pytest.approx(1 / 3, abs=0.01)


def test_time_counts_by_the_sample_where_the_batch_shrinks() -> None:
    smaller = by_name(start())["micro batch 1 instead of 4"]
    as_many = known(slower(start(), smaller, rank(2, 4 * 10**11), rank(8, 10**11)))
    by_option = start({**DS, "train_micro_batch_size_per_gpu": "auto"}, (*OPTIONS, batch(4)))
    fewer = known(slower(by_option, smaller_by_option(by_option), rank(2, 4 * 10**11), rank(2, 2 * 10**11)))
    assert as_many == pytest.approx(0, abs=0.01)
    assert fewer == pytest.approx(1.0, abs=0.02), "a quarter of the samples in half of the time"


def batch(size: int) -> Option:
    return Option(dest="batch_size", names=["--batch_size"], is_flag=False, value=size)


def smaller_by_option(draft: Draft) -> Draft:
    return next(made for name, made in by_name(draft).items() if name.startswith("micro batch 1"))


def test_what_copies_of_memory_that_is_not_page_locked_cost_is_not_known() -> None:
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
    now = start({**DS, "zero_optimization": zero})
    made = {one.says[0]: one.draft for one in for_host(now, counts_locks=True)}
    assert slower(now, made["pin_memory false"], rank(1, 10**11), rank(1, 10**11)) is None
    assert slower(now, made["optimizer states on the GPU"], rank(1, 10**11), rank(1, 10**11)) == pytest.approx(
        0, abs=0.1
    )


@pytest.mark.parametrize("changed", [None, rank_record("train", world_size=8)])
def test_a_change_that_left_no_order_has_no_cost(changed: RankRecord | None) -> None:
    assert slower(start(), by_name(start())["activation checkpointing"], rank(1, 10**11), changed) is None
