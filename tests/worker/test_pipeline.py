"""The pipeline with two and three real ranks over gloo, and each of its stages played alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.worker.test_parameter_server import CONFIG, FEW_BYTES, live_bytes, moved, total
from tests.worker.test_parameter_server import ran as ran  # a fixture
from tests.worker.test_parameter_server import spec as worker_spec
from zerobench.records import Category, Phase, Place, RankRecord, Status, StepKind
from zerobench.spec.parameters import count_parameters
from zerobench.spec.pipeline import micro_batches_in_flight
from zerobench.spec.trial import TrialSpec

SIZES = {**CONFIG, "num_hidden_layers": 4}
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 4, "vocab_size": 509, "n_positions": 64}
GPT2 |= {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
HIDDEN_BYTES = 32 * 64  # elements of one micro-batch's hidden states
STATES = (Category.PARAMETERS, Category.GRADIENTS, Category.FIRST_MOMENT, Category.SECOND_MOMENT)
SCHEDULES = ("1f1b", "gpipe")

Ranks = list[RankRecord]
Ran = Callable[[TrialSpec], Ranks]


def spec(strategy: str = "pipeline", config: dict[str, Any] = SIZES, **fields: Any) -> TrialSpec:
    """Two stages of two blocks each, four micro-batches a step."""
    work = {"gpus_per_node": 2, "gradient_accumulation_steps": 2, "model": {"name": "tiny", "hf_config": config}}
    return worker_spec(strategy, **{**work, **fields})


def single(**fields: Any) -> TrialSpec:
    """One process on the global batch of `spec`."""
    return spec("single", **{**fields, "gpus_per_node": 1, "gradient_accumulation_steps": 4})


def distance(ours: Ranks, reference: Ranks) -> float:
    assert {rank.status for rank in (*ours, *reference)} == {Status.COMPLETED}
    assert reference[0].losses[-1] < reference[0].losses[0] - 0.01  # the model learns, so a wrong update would show
    return max(abs(a - b) for a, b in zip(ours[0].losses, reference[0].losses, strict=True))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_stages_lose_what_one_process_loses_to_5e_6(ran, optimizer, schedule):
    ours = ran(spec(optimizer=optimizer, pipeline_schedule=schedule))
    assert distance(ours, ran(single(optimizer=optimizer))) <= 5e-6
    assert ours[0].losses == ours[1].losses
