"""What transformers' own blocks move, as counted by hand, beside the operations of simulated ones."""

from typing import Any

import pytest

from benchmarks.prediction.simulated import gpu_trial
from benchmarks.timing.llm_foundry import PRIOR
from tests.tools.kept_simulator import Simulate
from tests.tools.known import known
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.optimizers import Optimizer
from zerobench.config.trial.trial import CrossEntropy
from zerobench.estimate.clock.kernels import WORD_BYTES
from zerobench.estimate.clock.rates import kind_rates
from zerobench.estimate.clock.trace import Kernels, unpack
from zerobench.estimate.time.passes import decoder_of
from zerobench.estimate.time.transformers_blocks import FUSED, LOSS_WORDS, words_of
from zerobench.records.records import RankRecord

GPT2 = {"model_type": "gpt2", "n_embd": 512, "n_head": 8, "n_inner": 2048, "vocab_size": 512}
GPT2 |= {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
LLAMA = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 1408}
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "gpt2 gelu": GPT2 | {"activation_function": "gelu"},
    "gpt_neox": {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048, "model_type": "gpt_neox"},
    "llama": LLAMA | {"model_type": "llama"},
    "mistral": LLAMA | {"model_type": "mistral"},
}
TOKENS = 1024


def model(name: str, blocks: int) -> ModelSpec:
    layers = "n_layer" if name.startswith("gpt2") else "num_hidden_layers"
    return ModelSpec(name=f"m{blocks}", hf_config={"vocab_size": 512, **CONFIGS[name], layers: blocks})


def moved(rank: RankRecord) -> int:
    trace = unpack(rank.step_trace or "")
    works = [trace.works[one.work] for phase, one in trace.in_phases() if isinstance(one, Kernels) and phase != "step"]
    return sum(work.moved_bytes for work in works)


@pytest.fixture(scope="module")
def loss_words(simulate: Simulate) -> dict[CrossEntropy, float]:
    """A token and word of the vocabulary: what twice as many words add, embedding and head apart."""
    usual: dict[str, Any] = {"strategy": "single", "optimizer": Optimizer.ADAMW, "activation_checkpointing": False}
    usual |= {"sequence_length": TOKENS, "micro_batch_size": 4}
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 1, "intermediate_size": 64}
    config["num_hidden_layers"] = 1
    models = {words: ModelSpec(name=f"v{words}", hf_config={**config, "vocab_size": words}) for words in (8192, 16384)}
    counted = [how for how in CrossEntropy if how is not CrossEntropy.LIGER]
    records = simulate(
        [gpu_trial(model, 0, 1, cross_entropy=how, **usual) for how in counted for model in models.values()]
    )
    return {
        how: (moved(more) - moved(few)) / 8192 / (4 * TOKENS) / WORD_BYTES
        for how, few, more in zip(counted, records[::2], records[1::2], strict=True)
    }


def test_the_words_that_a_loss_moves_are_those_of_its_operations(loss_words: dict[CrossEntropy, float]) -> None:
    for how, counted in loss_words.items():
        # a scatter changes one logit of a token, and counts as if it passed over all of them, 4 bytes each way
        scattered = 4 if how is CrossEntropy.CHUNKED else 0
        assert LOSS_WORDS[how] + scattered == pytest.approx(counted, abs=0.3)
    assert LOSS_WORDS[CrossEntropy.LIGER] < min(loss_words.values())


@pytest.fixture(scope="module")
def block_words(simulate: Simulate) -> dict[str, float]:
    """Of one block a token: what two more blocks add."""
    usual: dict[str, Any] = {"strategy": "single", "optimizer": Optimizer.ADAMW, "activation_checkpointing": False}
    usual |= {"sequence_length": TOKENS // 2, "micro_batch_size": 2}
    records = simulate([gpu_trial(model(name, blocks), 0, 1, **usual) for name in CONFIGS for blocks in (2, 4)])
    return {
        name: (moved(more) - moved(few)) / 2 / TOKENS / WORD_BYTES
        for name, few, more in zip(CONFIGS, records[::2], records[1::2], strict=True)
    }


@pytest.mark.parametrize("name", CONFIGS)
def test_the_words_that_a_block_moves_are_those_of_its_operations(block_words: dict[str, float], name: str) -> None:
    words, decoder = known(words_of(model(name, 4))), known(decoder_of(model(name, 4)))
    assert sum(each.of(decoder) for each in words) == pytest.approx(block_words[name], rel=0.01)


def test_the_fitted_words_lie_between_those_of_a_fused_block_counted_by_hand_and_by_operation() -> None:
    assert words_of(model("gpt2 gelu", 4)) == FUSED
    by_hand = PRIOR["forward_words"][0] + PRIOR["backward_words"][0]
    fitted = kind_rates("a100").forward_words + kind_rates("a100").backward_words
    assert by_hand <= fitted <= sum(each.hidden + 4 * each.inner for each in FUSED)
    assert fitted == pytest.approx(by_hand, rel=0.04)
