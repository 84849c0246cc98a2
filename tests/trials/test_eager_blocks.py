"""What transformers' own blocks move, as counted by hand, beside the operations of simulated ones."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.prediction.simulated import gpu_trial
from tests.timing.predicted_trials import expected, predicted
from tests.tools.kept_simulator import Simulate
from zerobench.records import RankRecord
from zerobench.spec.model import ModelSpec
from zerobench.spec.optimizers import Optimizer
from zerobench.spec.presets import resolve_model
from zerobench.timing.eager import FUSED, times_as_many, words_of
from zerobench.timing.kernels import WORD_BYTES
from zerobench.timing.passes import decoder_of
from zerobench.timing.trace import Kernels, unpack

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
    words, decoder = words_of(model(name, 4)), decoder_of(model(name, 4))
    assert words is not None
    assert decoder is not None
    assert sum(each.of(decoder) for each in words) == pytest.approx(block_words[name], rel=0.01)


def test_the_fitted_words_are_those_of_a_block_that_fuses_norms_and_activation() -> None:
    fitted = decoder_of(model("gpt2 gelu", 4))
    assert fitted is not None
    assert times_as_many(model("gpt2 gelu", 4), fitted) == pytest.approx(1.0)
    assert words_of(model("gpt2 gelu", 4)) == FUSED


def test_a_time_says_that_its_model_moves_more_when_nothing_is_fused() -> None:
    said = [words for words in expected(predicted()).assumptions if "times the bytes" in words]
    assert len(said) == 1
    assert "llama" in said[0]
    assert not any("times the bytes" in one for one in expected(predicted(model=model("gpt2 gelu", 4))).assumptions)
    qwen = expected(predicted(model=resolve_model("qwen2.5-14b"))).assumptions
    assert not any("times the bytes" in one for one in qwen), "not counted"
