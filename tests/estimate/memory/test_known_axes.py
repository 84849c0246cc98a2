"""Closed forms are frozen: an axis that they do not know is refused in one line, and no axis is silently ignored."""

from typing import Any, NamedTuple

import pytest

from tests.config.machines import CPU
from tests.report.predicted_trial import asked
from zerobench.common.errors import UserError
from zerobench.config.axes.axes import AXES
from zerobench.config.rules.rules import find_skip
from zerobench.config.rules.situation import Situation
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.memory.record import formula_record

EXPERTS = ModelSpec(name="experts", hf_config={"model_type": "qwen3_moe", "hidden_size": 64, "num_experts": 4})


class Change(NamedTuple):
    """A value of an axis off its default, under which it acts."""

    fields: dict[str, Any]
    base: dict[str, Any] = {}  # noqa: RUF012 -- a field of a tuple
    """Other fields of both trials."""


KNOWN = {
    "strategy": Change({"strategy": "zero1"}),
    "offload_optimizer": Change({"offload_optimizer": "cpu"}),
    "offload_param": Change({"offload_param": "cpu"}),
    "world_size": Change({"gpus_per_node": 2}),
    "num_nodes": Change({"num_nodes": 2}),
    "gpus_per_node": Change({"gpus_per_node": 2}),
    "micro_batch_size": Change({"micro_batch_size": 2}),
    "gradient_accumulation_steps": Change({"gradient_accumulation_steps": 2}),
    "sequence_length": Change({"sequence_length": 128}),
    "precision": Change({"precision": "fp32"}),
    "optimizer": Change({"optimizer": "sgd"}),
    "adapter": Change({"adapter": "lora-16"}),
    "frozen": Change({"frozen": "wte"}),
    "activation_checkpointing": Change({"activation_checkpointing": True}),
    "attention": Change({"attention": "eager"}),
    "cross_entropy": Change({"cross_entropy": "chunked"}),
    "bucket_bytes": Change({"bucket_bytes": 10**6}, {"strategy": "ddp"}),
    "pipeline_schedule": Change(
        {"pipeline_schedule": "gpipe"}, {"strategy": "pipeline", "gpus_per_node": 2, "gradient_accumulation_steps": 4}
    ),
    "reshard_after_forward": Change({"reshard_after_forward": False}, {"strategy": "fsdp"}),
    "zero_init": Change({"zero_init": False}),
    "hpz_partition_size": Change({"hpz_partition_size": 2}),
    "mics_shard_size": Change({"mics_shard_size": 2}, {"strategy": "fsdp"}),
    "ds_config": Change({"ds_config": {"zero_optimization.reduce_bucket_size": 10**6}}),
    "rank": Change({"prediction": {"gpu": "H200 SXM", "rank": 1}}, {"strategy": "pipeline", "gpus_per_node": 2}),
    "gpu": Change({"prediction": {"gpu": "A100 SXM 40GB"}}),
}
"""Axes with closed forms: memory, traffic or the device differ."""

PLAYED = {
    "model": Change({"model": EXPERTS}),
    "batch_ramp": Change(
        {"batch_ramp": {"start_tokens": 8192, "over_tokens": 65536}}, {"gradient_accumulation_steps": 4}
    ),
    "weights": Change({"weights": "loaded"}),
    "quantized_weights": Change({"quantized_weights": True}),
    "quantized_gradients": Change({"quantized_gradients": True}, {"num_nodes": 2, "precision": "fp16"}),
    "consistency": Change(
        {"consistency": "async"},
        {"strategy": "parameter-server", "gpus_per_node": 2, "gradient_accumulation_steps": 2},
    ),
}
"""Axes without: a simulation plays them."""

MEASURED = {
    "compression": Change({"compression": "powersgd"}, {"strategy": "ddp"}),
    "compile": Change({"compile": "model"}, {"strategy": "ddp"}),
    "tf_strategy": Change({"tf_strategy": "mirrored"}, {"strategy": "tensorflow"}),
}
"""Axes that real ranks alone show."""

OF_NO_MEMORY = {"checkpoint", "threads_per_rank", "nvme_path", "evidence", "ds_config_file"}
"""Axes that move no tensor, or name where others are from."""


def trial(evidence: str, *changes: dict[str, Any]) -> TrialSpec:
    fields = {key: value for change in changes for key, value in change.items()}
    base = asked("zero3").model_dump(exclude_computed_fields=True)
    base = {name: base[name] for name in ("model", "precision", "prediction", "sequence_length")}
    return TrialSpec.model_validate({**base, "gpus_per_node": 8, "strategy": "zero3", **fields, "evidence": evidence})


def refusal(spec: TrialSpec) -> str | None:
    """Why it is not run; for `formula`, also why there is no closed form."""
    skip = find_skip(Situation(spec, CPU, 10**6))
    if skip is not None or spec.evidence != "formula":
        return None if skip is None else skip.reason
    try:
        formula_record(spec, plays_allocator=False)
    except UserError as error:
        return str(error)
    return None


def test_every_axis_is_known_played_measured_or_of_no_memory() -> None:
    places = [set(KNOWN), set(PLAYED), set(MEASURED), OF_NO_MEMORY]
    assert set().union(*places) == set(AXES)
    assert sum(map(len, places)) == len(AXES)


@pytest.mark.parametrize("axis", KNOWN)
def test_a_known_axis_changes_what_the_closed_forms_give(axis: str) -> None:
    change = KNOWN[axis]
    before, after = (
        formula_record(trial("formula", change.base, fields), plays_allocator=False) for fields in ({}, change.fields)
    )
    figures = ("memory", "collectives", "context", "device_name")
    assert any(getattr(before, name) != getattr(after, name) for name in figures)


@pytest.mark.parametrize("axis", PLAYED | MEASURED)
def test_an_axis_without_closed_forms_is_refused_in_one_line(axis: str) -> None:
    change = (PLAYED | MEASURED)[axis]
    reason = refusal(trial("formula", change.base, change.fields))
    assert reason
    assert "\n" not in reason
    assert "formula" in reason or "closed form" in reason


@pytest.mark.parametrize("axis", PLAYED)
def test_an_axis_without_closed_forms_is_played(axis: str) -> None:
    change = PLAYED[axis]
    assert refusal(trial("simulated", change.base, change.fields)) is None
