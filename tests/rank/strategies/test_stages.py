"""A model divided into the stages of a pipeline computes what the whole model computes, with the same weights."""

from __future__ import annotations

import pytest
import torch

from tests.rank.strategies.test_torch_loop import job_of
from zerobench.config.derived.pipeline import MODEL_TYPES
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec
from zerobench.rank.strategies.base import Job
from zerobench.rank.strategies.stages import Stage, build_stage

CPU = torch.device("cpu")
SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96}
SIZES["num_hidden_layers"] = 4
TIED = ("gpt2", "llama")


def job(model_type: str, precision: str = "fp32", tied: bool = False, checkpointing: bool = False) -> Job:
    sizes = {"n_embd": 64, "n_head": 4, "n_layer": 4} if model_type == "gpt2" else SIZES
    config = {"model_type": model_type, "vocab_size": 120, "tie_word_embeddings": tied, **sizes}
    config |= {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0} if model_type == "gpt2" else {}
    trial = TrialSpec(
        model=ModelSpec(name="m", hf_config=config),
        strategy="pipeline",
        precision=precision,
        activation_checkpointing=checkpointing,
    )
    return job_of(trial)


def run(stages: list[Stage], tokens: torch.Tensor) -> torch.Tensor:
    """The loss of the stages one after the other, with the gradients of its parameters."""
    hidden = tokens
    for stage in stages:
        hidden = stage(hidden)
    loss = stages[-1].loss(hidden, tokens)
    loss.backward()
    return loss


def gradients(stages: list[Stage]) -> dict[str, torch.Tensor]:
    """By the whole model's names; of a tensor that two stages hold, the sum."""
    found: dict[str, torch.Tensor] = {}
    for stage in stages:
        for name, parameter in stage.model.named_parameters():
            if parameter.grad is not None:
                found[name] = found[name] + parameter.grad if name in found else parameter.grad
    return found


CASES = [(model_type, tied) for model_type in MODEL_TYPES for tied in (False, True)[: 1 + (model_type in TIED)]]


@pytest.mark.parametrize(("model_type", "tied"), CASES)
@pytest.mark.parametrize("num_stages", [2, 4])
def test_stages_compute_the_loss_and_the_gradients_of_the_whole_model(model_type, tied, num_stages):
    asked = job(model_type, tied=tied)
    tokens = torch.randint(0, 120, (2, 16), generator=torch.Generator().manual_seed(0))
    whole = asked.build_model()
    loss = whole(input_ids=tokens, labels=tokens).loss
    loss.backward()
    stages = [build_stage(asked, index, num_stages) for index in range(num_stages)]
    assert run(stages, tokens).item() == pytest.approx(loss.item(), abs=1e-6)
    ours = gradients(stages)
    wholes = dict(whole.named_parameters())
    assert ours.keys() == wholes.keys()
    for name, parameter in wholes.items():
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-4, atol=1e-7, msg=name)


@pytest.mark.parametrize("tied", [False, True])
def test_stages_together_hold_each_weight_of_the_whole_model_once_and_a_tied_one_twice(tied):
    asked = job("llama", precision="bf16", tied=tied)
    wholes = dict(asked.build_model().named_parameters())
    stages = [build_stage(asked, index, 3) for index in range(3)]
    held = [(name, parameter) for stage in stages for name, parameter in stage.model.named_parameters()]
    assert sorted(name for name, _ in held) == sorted([*wholes, *(["model.embed_tokens.weight"] if tied else [])])
    for name, parameter in held:
        assert torch.equal(parameter, wholes[name]), name
    assert [stage.tied_weight() is not None for stage in stages] == [tied, False, tied]
    assert {stage.whole_parameters.total for stage in stages} == {sum(p.numel() for p in wholes.values())}


def test_a_tied_weight_is_embedding_and_head_of_the_stage_that_is_both_ends():
    asked = job("gpt2", tied=True)
    [stage] = [build_stage(asked, 0, 1)]
    assert stage.model.get_output_embeddings().weight is stage.tied_weight()
    tokens = torch.arange(32).view(2, 16)
    assert torch.equal(stage(tokens), asked.build_model()(input_ids=tokens).logits)


def test_blocks_of_a_stage_are_recomputed_where_the_trial_asks_for_it():
    asked = job("llama", checkpointing=True)
    stage = build_stage(asked, 1, 2)
    seen = 0

    def count(*_: object) -> None:
        nonlocal seen
        seen += 1

    stage.model.model.layers[3].mlp.register_forward_pre_hook(count)
    hidden = torch.randn(2, 16, 64, requires_grad=True)
    stage(hidden).sum().backward()
    assert seen == 2
