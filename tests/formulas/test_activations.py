"""The tallies of activations against what autograd saves, and the published formulas at their published values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from zerobench.formulas.activations import (
    PUBLISHED,
    activations,
    flash_layer_bytes,
    gpt_layer_bytes,
    logits_bytes,
    megatron_layer_bytes,
    recomputed_layer_bytes,
)
from zerobench.spec.presets import resolve_model
from zerobench.spec.trial import TrialSpec

LLAMA = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 112,
}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 300,
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
} | NO_DROPOUT
QWEN2 = LLAMA | {"model_type": "qwen2"}
BATCH, SEQUENCE = 3, 64
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def trial(config: dict[str, Any], precision: str, attention: str = "sdpa", **fields: Any) -> TrialSpec:
    return TrialSpec(
        model=resolve_model(config),
        strategy="zero1",
        micro_batch_size=BATCH,
        sequence_length=SEQUENCE,
        precision=precision,
        attention=attention,
        **fields,
    )


def saved_bytes(spec: TrialSpec) -> int:
    """Bytes of the storages that autograd keeps for backward, but for the model's own and the token ids."""
    config = AutoConfig.for_model(**spec.model.hf_config)
    config.use_cache = False
    model = AutoModelForCausalLM.from_config(config, dtype=DTYPES[spec.precision], attn_implementation=spec.attention)
    tokens = torch.randint(0, 300, (BATCH, SEQUENCE))
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers(), tokens)}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(input_ids=tokens, labels=tokens).loss  # kept: its graph holds what the hooks saw
    loss.backward()  # a graph whose hooks gave back its own tensors is a cycle that only backward breaks
    return sum(kept.values())


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("config", [LLAMA, GPT2, QWEN2], ids=lambda config: config["model_type"])
def test_the_tally_is_what_autograd_saves(config: dict[str, Any], precision: str, attention: str) -> None:
    spec = trial(config, precision, attention)
    formula = activations(spec).saved_bytes + logits_bytes(BATCH * SEQUENCE, 300, activations_element(spec)).saved_bytes
    # Apart from it: the positions' indices, the loss, and a LayerNorm's two numbers a token, fp32 on GPUs only.
    assert formula == pytest.approx(saved_bytes(spec), rel=5e-3)


def activations_element(spec: TrialSpec) -> int:
    return DTYPES[spec.precision].itemsize


def test_the_published_formulas_give_gpt_3s_published_factor() -> None:
    # Korthikanti et al., section 4.1: 5 a s / h is 80 for GPT-3 (a = 96, s = 2048, h = 12288).
    tokens, hidden = 2048, 12288
    assert gpt_layer_bytes(tokens, hidden, 96, 2048) == tokens * hidden * (34 + 80)
    assert flash_layer_bytes(tokens, hidden) == megatron_layer_bytes(tokens, hidden, 4 * hidden) == 34 * tokens * hidden
    assert recomputed_layer_bytes(tokens, hidden) == 2 * tokens * hidden


def test_models_without_a_tally_follow_the_published_formula_and_say_so() -> None:
    config = {"model_type": "opt", "hidden_size": 64, "ffn_dim": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    found = activations(trial(config, "bf16"))
    assert found.source == PUBLISHED
    assert found.per_layer_bytes == flash_layer_bytes(BATCH * SEQUENCE, 64)
    eager = activations(trial(config, "bf16", "eager"))
    assert eager.per_layer_bytes == gpt_layer_bytes(BATCH * SEQUENCE, 64, 4, SEQUENCE)


def test_checkpointing_keeps_a_layers_input_and_makes_one_layer_again() -> None:
    plain = activations(trial(LLAMA, "bf16"))
    checkpointed = activations(trial(LLAMA, "bf16", activation_checkpointing=True))
    spared = 2 * (plain.per_layer_bytes - recomputed_layer_bytes(BATCH * SEQUENCE, 64))
    assert plain.saved_bytes - checkpointed.saved_bytes == spared
    assert checkpointed.recomputed_bytes == plain.per_layer_bytes
    assert plain.recomputed_bytes == 0


@pytest.mark.parametrize(("element", "forward"), [(2, 10), (4, 8)])
def test_the_loss_takes_ten_bytes_a_logit_in_16_bits_and_eight_in_fp32(element: int, forward: int) -> None:
    found, labels = logits_bytes(100, 1000, element), 8 * 100
    assert found.forward_peak_bytes == forward * 100_000 + labels
    assert found.backward_peak_bytes == 12 * 100_000 + labels
    assert found.saved_bytes == 4 * 100_000 + labels
