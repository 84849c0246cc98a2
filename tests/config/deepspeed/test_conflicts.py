"""A configuration that is not its trial's is refused, and both sides are named."""

from typing import Any

import pytest

from tests.tools.refusals import one_line
from zerobench.config.deepspeed import build_ds_config
from zerobench.config.deepspeed.conflicts import refuse_conflicts
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import TrialSpec


def trial(**fields: Any) -> TrialSpec:
    usual = {"model": resolve_model("llama-20m"), "strategy": "zero2", "gpus_per_node": 4, "micro_batch_size": 3}
    return TrialSpec.model_validate({**usual, "gradient_accumulation_steps": 2, **fields})


CUT = {"ds_config": {"tensor_parallel.autotp_size": 2}}


LION = {"optimizer": "lion"}
"""DeepSpeed makes none of it and is handed one."""


@pytest.mark.parametrize(
    "fields", [{}, CUT, LION, {"strategy": "zero3", "hpz_partition_size": 2}, {"precision": "fp32"}]
)
def test_a_trials_own_configuration_agrees_with_it(fields: dict[str, Any]) -> None:
    refuse_conflicts(build_ds_config(trial(**fields)), trial(**fields), "here")


@pytest.mark.parametrize(
    ("fields", "changed", "said"),
    [
        ({}, {"train_batch_size": 12}, "train_batch_size is 12, but the trial's global_batch_size is 24"),
        (CUT, {"train_batch_size": 24}, "train_batch_size is 24, but the trial's global_batch_size is 48"),
        ({}, {"train_micro_batch_size_per_gpu": 2}, "micro_batch_size is 3"),
        ({}, {"gradient_accumulation_steps": 4}, "gradient_accumulation_steps is 2"),
        (CUT, {"gradient_accumulation_steps": 2}, "the trial's gradient_accumulation_steps is 4"),
        ({}, {"tensor_parallel": {"autotp_size": 2}}, "tensor_parallel.autotp_size is 2, but the trial's"),
        (CUT, {"tensor_parallel": {"autotp_size": 4}}, "autotp_size is 4, but the trial's"),
        ({}, {"gradient_clipping": 0.5}, "gradient_clipping is 0.5"),
        (LION, {"optimizer": {"type": "SGD"}}, "the optimizer it makes is 'sgd', but the trial's optimizer is 'lion'"),
        ({}, {"memory_breakdown": True}, "memory_breakdown: true resets the peaks"),
    ],
)
def test_each_fact_that_differs_is_named_on_both_sides(
    fields: dict[str, Any], changed: dict[str, Any], said: str
) -> None:
    asked = trial(**fields)
    with one_line(start="here: ", match=said):
        refuse_conflicts({**build_ds_config(asked), **changed}, asked, "here")


@pytest.mark.parametrize("nothing", [0, 1, None])
def test_a_tensor_parallel_size_of_nothing_is_that_of_one(nothing: int | None) -> None:
    refuse_conflicts({**build_ds_config(trial()), "tensor_parallel": {"autotp_size": nothing}}, trial(), "here")
