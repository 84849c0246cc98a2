"""Ways to build a model at stage 3, and their gathered weights: equal training, different bytes."""

from typing import Any

import pytest

from tests.conftest import memory_row
from tests.rank.real_ranks import LLAMA, RunTrial, Tiny
from tests.tools.known import known
from tests.tools.rank_memory import apart, start_up_bytes
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.models.parameters import count_parameters
from zerobench.estimate.memory.record import formula_record, formula_setting, trial_instants

SMALL = {"zero_optimization.reduce_bucket_size": 10**5, "zero_optimization.stage3_param_persistence_threshold": 0}
MATRIX_BYTES = 4 * LLAMA["hidden_size"] * LLAMA["intermediate_size"]
"""The largest weight of a layer."""
TOLERANCE = 5e-6
WORK: dict[str, Any] = {"strategy": "zero3", "gradient_accumulation_steps": 1, "hyperparameters": {}}
spec = Tiny(LLAMA, SMALL, {**WORK, "steps": {"warmup": 0, "timed": 1, "memory": 1}}).spec
TIED = {"config": LLAMA | {"tie_word_embeddings": True}}


@pytest.mark.parametrize("fields", [{}, TIED, {"offload_param": "cpu"}], ids=["untied", "tied", "offloaded"])
def test_it_takes_the_steps_of_the_model_that_was_partitioned_as_it_was_built(ran: RunTrial, fields: Any) -> None:
    if "offload_param" in fields:
        fields = fields | {"offload_optimizer": "cpu"}
    [theirs, _], [ours, other] = ran(spec(**fields)), ran(spec(zero_init=False, **fields))
    assert (theirs.effective_config["zero_init"], ours.effective_config["zero_init"]) == (True, False)
    assert apart(theirs.losses, ours.losses) <= TOLERANCE
    assert start_up_bytes(other, Category.UNATTRIBUTED) <= 0.01 * start_up_bytes(other, Category.TOTAL)


@pytest.mark.parametrize("evidence", ["measured", "solo", "simulated", "formula"])
def test_every_world_has_the_whole_model_on_the_device_at_start_up_bytes(ran: RunTrial, evidence: str) -> None:
    whole, cut = spec(zero_init=False, evidence=evidence), spec(evidence=evidence)
    ours, theirs = (formula_record(one) if evidence == "formula" else ran(one)[0] for one in (whole, cut))
    model_bytes = 4 * known(ours.parameters).total
    assert start_up_bytes(ours, Category.PARAMETERS) >= model_bytes
    assert start_up_bytes(theirs, Category.PARAMETERS) < 0.8 * model_bytes
    if evidence != "formula":  # which knows nothing of the embedding's gathering at the end of start-up
        measured = ran(spec(zero_init=False))[0]
        found, expected = (
            memory_row(rank, Phase.INIT, Category.TOTAL, step=StepKind.FIRST).foreseeable_peak_bytes or 0
            for rank in (ours, measured)
        )
        assert found
        assert 0 <= expected - found <= MATRIX_BYTES  # gloo's thread may hold on to what it last passed on


ALONE = SMALL | {
    "zero_optimization.stage3_prefetch_bucket_size": 0,
    "zero_optimization.stage3_max_live_parameters": 0,
    "zero_optimization.stage3_max_reuse_distance": 0,
}


@pytest.mark.parametrize("evidence", ["measured", "simulated"])
def test_without_deepspeeds_linear_layer_autograd_holds_every_weight_and_explain_says_so(
    ran: RunTrial, evidence: str
) -> None:
    key = {"zero_optimization.memory_efficient_linear": False}
    own, torchs = spec(ds_config=ALONE, evidence=evidence), spec(ds_config=ALONE | key, evidence=evidence)
    counts = known(count_parameters(own.model))
    linear_bytes = 4 * (counts.attention + counts.mlp + counts.head)
    named: Any = trial_instants(torchs, formula_setting(torchs), StepKind.STEADY)[Place.DEVICE].forward
    [term] = named.of(Category.GATHERED_PARAMETERS).terms
    assert (term.nbytes, "memory_efficient_linear false" in term.words) == (linear_bytes, True)
    held, alone = (
        memory_row(ran(one)[0], Phase.FORWARD, Category.GATHERED_PARAMETERS).live_bytes for one in (torchs, own)
    )
    assert held == pytest.approx(linear_bytes, rel=0.01)
    assert alone < 0.01 * linear_bytes
    assert ran(torchs)[0].losses == pytest.approx(ran(own)[0].losses, abs=TOLERANCE)
    assert any("every gathered weight of nn.Linear is held" in one for one in ran(torchs)[0].departures)
