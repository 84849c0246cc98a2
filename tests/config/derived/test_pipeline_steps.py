"""What passes between the stages of a pipeline, and how long each of them waits."""

import pytest

from tests.estimate.memory.test_pipeline import HIDDEN, SEQUENCE, STAGES, trial
from tests.tools.at_least_one import at_least_one
from zerobench.common.errors import UserError
from zerobench.config.derived.pipeline_steps import (
    StageTraffic,
    bubble_fraction,
    passed_per_step,
    pipeline_bytes_per_step,
)
from zerobench.config.trial.model import ModelSpec


@pytest.mark.parametrize(("precision", "element"), [("fp32", 4), ("bf16", 2)])
def test_hidden_states_cross_each_border_once_and_their_gradients_once_the_other_way(
    precision: str, element: int
) -> None:
    micro_batches = 2 * STAGES
    border = micro_batches * 3 * SEQUENCE * HIDDEN * element
    found = [passed_per_step(trial(precision=precision), stage) for stage in range(STAGES)]
    assert found == [StageTraffic(n * border, n * border) for n in (1, 2, 2, 1)]


def test_a_driver_sends_the_last_stage_the_tokens_and_gets_the_loss_whose_gradient_it_sends() -> None:
    micro_batches, border = 2 * STAGES, 2 * STAGES * 3 * SEQUENCE * HIDDEN * 4
    tokens, loss = micro_batches * 3 * SEQUENCE * 8, micro_batches * 4
    found = [passed_per_step(trial("rpc-pipeline"), stage) for stage in range(STAGES)]
    assert found == [
        StageTraffic(border + tokens + loss, border + loss),
        StageTraffic(2 * border, 2 * border),
        StageTraffic(2 * border, 2 * border),
        StageTraffic(border + loss, border + tokens + loss),
    ]


def test_what_a_stage_moves_is_what_it_sends_and_what_it_gets() -> None:
    asked = trial("rpc-pipeline")
    for stage in at_least_one(range(STAGES)):
        passed = passed_per_step(asked, stage)
        assert pipeline_bytes_per_step(asked, stage) == passed.sent_bytes + passed.received_bytes


def test_of_one_stage_nothing_passes_and_nobody_waits() -> None:
    alone = trial(gpus_per_node=1)
    assert passed_per_step(alone, 0) == StageTraffic(0, 0)
    assert bubble_fraction(alone) == 0


def test_the_bubble_is_the_papers() -> None:
    found = [bubble_fraction(trial(gradient_accumulation_steps=steps)) for steps in (1, 2, 8)]
    assert found == pytest.approx([3 / (4 + 3), 3 / (8 + 3), 3 / (32 + 3)])


def test_a_model_without_a_hidden_size_is_refused_by_name() -> None:
    unknown = ModelSpec(name="odd", hf_config={"model_type": "never_heard_of"})
    with pytest.raises(UserError, match="model: 'odd' has no hidden_size in its config"):
        passed_per_step(trial().model_copy(update={"model": unknown}), 0)
