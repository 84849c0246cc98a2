"""What passes between the stages of a pipeline, and how long each of them waits."""

from typing import Any

import pytest

from zerobench.common.vocabulary import Category, StepKind
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.memory.pipeline import passes_with_gradients, shared_elements, stage_device
from zerobench.estimate.memory.record import formula_setting

HIDDEN, SEQUENCE, STAGES = 64, 32, 4


def trial(strategy: str = "pipeline", **fields: Any) -> TrialSpec:
    config = {"model_type": "llama", "hidden_size": HIDDEN, "num_attention_heads": 4, "num_hidden_layers": 4}
    model = ModelSpec(name="m", hf_config=config | {"vocab_size": 509, "tie_word_embeddings": False})
    asked = {
        "gpus_per_node": STAGES,
        "gradient_accumulation_steps": 2,
        "precision": "fp32",
        "sequence_length": SEQUENCE,
    }
    return TrialSpec.model_validate({"model": model, "strategy": strategy, **asked, "micro_batch_size": 3, **fields})


def test_a_tied_heads_gradient_is_shared_by_the_first_and_the_last_stage() -> None:
    shares = [trial(prediction={"rank": stage}) for stage in range(STAGES)]
    tied = [one.model_copy(update={"model": resolve_model("gpt2-125m")}) for one in shares]
    assert [shared_elements(one) for one in shares] == [0] * STAGES
    assert [shared_elements(one) for one in tied] == [50257 * 768, 0, 0, 50257 * 768]


@pytest.mark.parametrize(("rank", "passes"), [(0, 8 - 4 + 1), (3, 8 - 1 + 1)])
def test_the_first_gradient_comes_when_as_many_micro_batches_are_under_way_as_stages_follow(
    rank: int, passes: int
) -> None:
    assert passes_with_gradients(trial(prediction={"rank": rank})) == passes


@pytest.mark.parametrize(
    ("rank", "schedule", "sent_back"), [(0, "1f1b", 0), (1, "1f1b", 1), (3, "1f1b", 1), (1, "gpipe", 0)]
)
def test_in_forward_a_gradient_is_on_its_way_back_from_all_but_the_first_stage_once_it_has_one(
    rank: int, schedule: str, sent_back: int
) -> None:
    asked = trial(evidence="formula", pipeline_schedule=schedule, prediction={"gpu": "h200", "rank": rank})
    instants = stage_device(asked, formula_setting(asked), StepKind.STEADY)
    forward, update = (each[Category.PIPELINE_BUFFERS] for each in (instants.forward, instants.step[0]))
    assert forward - update == sent_back * 3 * SEQUENCE * HIDDEN * 4


@pytest.mark.parametrize(
    ("rank", "schedule", "sent_back"), [(0, "1f1b", 0), (1, "1f1b", 2), (3, "1f1b", 2), (1, "gpipe", 2 * STAGES)]
)
def test_when_its_last_pass_ends_a_stage_holds_two_gradients_that_it_sent_and_under_gpipe_all(
    rank: int, schedule: str, sent_back: int
) -> None:
    asked = trial(evidence="formula", pipeline_schedule=schedule, prediction={"gpu": "h200", "rank": rank})
    instants = stage_device(asked, formula_setting(asked), StepKind.STEADY)
    backward_end, update = (each[Category.PIPELINE_BUFFERS] for each in (instants.backward_end, instants.step[0]))
    assert backward_end - update == sent_back * 3 * SEQUENCE * HIDDEN * 4
