"""The tallies of activations against what autograd saves, and the published formulas at their published values."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from zerobench.common.errors import UserError
from zerobench.config.derived.chunks import chunk_rows
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.memory.terms.activations import (
    PUBLISHED,
    TALLY,
    Logits,
    activations,
    chunked_logits_bytes,
    keeps_scores,
    logits_bytes,
    megatron_layer_bytes,
    recomputed_layer_bytes,
    trial_logits,
    trial_shape,
)
from zerobench.estimate.memory.terms.kept import Shape

if TYPE_CHECKING:
    import torch

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
QWEN3 = LLAMA | {"model_type": "qwen3", "head_dim": 24}
BATCH, SEQUENCE = 3, 64
DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
ELEMENTS = {"bf16": 2, "fp32": 4}


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
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**spec.model.hf_config)
    config.use_cache = False
    dtype = getattr(torch, DTYPES[spec.precision])
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=spec.attention)
    tokens = torch.randint(0, 300, (BATCH, SEQUENCE))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(spec.frozen is None or not re.search(spec.frozen, name))
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
@pytest.mark.parametrize("config", [LLAMA, GPT2, QWEN2, QWEN3], ids=lambda config: config["model_type"])
def test_the_tally_is_what_autograd_saves(config: dict[str, Any], precision: str, attention: str) -> None:
    spec = trial(config, precision, attention)
    formula = activations(spec).saved_bytes + logits_bytes(BATCH * SEQUENCE, 300, activations_element(spec)).saved_bytes
    # Apart from it: the positions' indices, the loss, and a LayerNorm's two numbers a token, fp32 on GPUs only.
    assert formula == pytest.approx(saved_bytes(spec), rel=5e-3)


FROZEN = {
    "embedding": r"embed_tokens|wte|wpe",
    "lower": r"embed_tokens|wte|wpe|(layers|h)\.0\.",
    "upper": r"(layers|h)\.1\.",
    "head alone": r"embed_tokens|wte|wpe|(layers|h)\.|norm|ln_f",
    "norms": r"norm|ln_",
    "attention": r"attn",
    "mlp": r"mlp",
    "keys": r"embed_tokens|wte|wpe|k_proj|c_fc",
    "norms of heads": r"[qk]_norm",
    "outputs": r"o_proj|down_proj|c_proj|lm_head",
    "all but the last product": r"^(?!.*layers\.1\.mlp\.down_proj|.*h\.2\.mlp\.c_proj)",
    "all but queries": r"^(?!.*layers\.1\.self_attn\.q_proj|.*h\.1\.attn\.c_attn)",
    "all but one norm": r"^(?!.*layers\.1\.input_layernorm|.*h\.1\.ln_1)",
    "all but norms of heads and the head": r"embed_tokens|wte|wpe|layernorm|ln_|_proj|c_",
}


UNTIED = (LLAMA, GPT2 | {"tie_word_embeddings": False}, QWEN2, QWEN3)
TIED = (r"wpe|h\.|ln_f", r"wte", r"h\.0\.")
"""What is frozen of a model whose head keeps its input where the embedding is trained."""


@pytest.mark.parametrize(
    ("config", "frozen", "attention"),
    [
        *itertools.product(UNTIED, FROZEN.values(), ("sdpa", "eager")),
        *itertools.product((GPT2,), TIED, ("sdpa",)),
    ],
)
def test_of_a_model_partly_frozen_it_is_what_autograd_saves(
    config: dict[str, Any], frozen: str, attention: str
) -> None:
    spec = trial(config, "bf16", attention, frozen=frozen)
    formula = activations(spec).saved_bytes + logits_bytes(BATCH * SEQUENCE, 300, 2).saved_bytes
    assert formula == pytest.approx(saved_bytes(spec), rel=5e-3)


def activations_element(spec: TrialSpec) -> int:
    return ELEMENTS[spec.precision]


def scores_bytes(tokens: int, num_heads: int, sequence_length: int) -> int:
    """5 a s b s, what a GPT layer keeps of attention's scores (Korthikanti et al., equation 1)."""
    return 5 * num_heads * sequence_length * tokens


def test_the_published_formulas_give_gpt_3s_published_factor() -> None:
    # Korthikanti et al., section 4.1: 5 a s / h is 80 for GPT-3 (a = 96, s = 2048, h = 12288).
    tokens, hidden = 2048, 12288
    layer = megatron_layer_bytes(tokens, hidden, 4 * hidden)
    assert layer == 34 * tokens * hidden
    assert layer + scores_bytes(tokens, 96, 2048) == tokens * hidden * (34 + 80)
    assert recomputed_layer_bytes(tokens, hidden) == 2 * tokens * hidden


def test_models_without_a_tally_follow_the_published_formula_and_say_so() -> None:
    config = {"model_type": "opt", "hidden_size": 64, "ffn_dim": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    found = activations(trial(config, "bf16"))
    assert found.source == PUBLISHED
    assert found.layers[0] == megatron_layer_bytes(BATCH * SEQUENCE, 64, 256)
    eager = activations(trial(config, "bf16", "eager"))
    assert eager.layers[0] - found.layers[0] == scores_bytes(BATCH * SEQUENCE, 4, SEQUENCE)


def test_checkpointing_keeps_a_layers_input_and_makes_one_layer_again() -> None:
    plain = activations(trial(LLAMA, "bf16"))
    checkpointed = activations(trial(LLAMA, "bf16", activation_checkpointing=True))
    spared = 2 * (plain.layers[0] - recomputed_layer_bytes(BATCH * SEQUENCE, 64))
    assert plain.saved_bytes - checkpointed.saved_bytes == spared
    assert checkpointed.recomputed_bytes == plain.layers[0]
    assert plain.recomputed_bytes == 0


@pytest.mark.parametrize(("element", "forward"), [(2, 10), (4, 8)])
def test_the_loss_takes_ten_bytes_a_logit_in_16_bits_and_eight_in_fp32(element: int, forward: int) -> None:
    """And the logits' gradient is in the model's type."""
    saved, peaks = 4 * 100_000 + 800, (forward * 100_000 + 800, 12 * 100_000 + 800)
    assert logits_bytes(100, 1000, element) == Logits(saved, *peaks, element * 100_000)


SHAPE = Shape(
    tokens=96,
    sequence_length=32,
    hidden_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=24,
    intermediate_size=112,
    vocab_size=300,
    num_layers=3,
    element=2,
    eager=False,
)
OPT = {"model_type": "opt", "hidden_size": 64, "ffn_dim": 256, "num_hidden_layers": 2, "num_attention_heads": 4}


def layer_bytes(config: dict[str, Any], shape: Shape) -> int:
    return activations(trial(config, "bf16"), shape).layers[0]


def outside_bytes(config: dict[str, Any], shape: Shape) -> int:
    return activations(trial(config, "bf16"), shape).outside_layers_bytes


def test_a_layer_of_llama_keeps_these_bytes_for_each_token() -> None:
    norms = 2 * (64 * 4 + 4 + 2 * 64 * 2)  # input in fp32, 1 / rms, normalised and scaled in 16 bits
    attention = 2 * (4 * 24 + 2 * 24 + 2 * 24 + 4 * 24) + 4 * 4  # q, k, v, output, log-sum-exp
    assert layer_bytes(LLAMA, SHAPE) == 96 * (norms + attention + 4 * 2 * 112)
    fp32 = 2 * (64 * 4 + 4 + 2 * 64 * 4) + 4 * (4 * 24 + 2 * 24 + 2 * 24 + 4 * 24) + 4 * 4 + 4 * 4 * 112
    assert layer_bytes(LLAMA, replace(SHAPE, element=4)) == 96 * fp32


def test_eager_attention_keeps_its_scores_and_repeats_keys_and_values_for_every_head() -> None:
    flash = 2 * (2 * 4 * 24 + 2 * 2 * 24) + 4 * 4
    for element, score in ((2, 4 + 2), (4, 4)):
        eager = element * 4 * 4 * 24 + score * 4 * 32
        other = element * (2 * 4 * 24 + 2 * 2 * 24) + 4 * 4
        shape = replace(SHAPE, element=element)
        assert layer_bytes(LLAMA, replace(shape, eager=True)) - layer_bytes(LLAMA, shape) == 96 * (eager - other)
    gpt2 = layer_bytes(GPT2, replace(SHAPE, eager=True)) - layer_bytes(GPT2, SHAPE)
    assert gpt2 == 96 * (2 * 4 * 4 * 24 + 2 * 4 * 32 - (flash + 2 * 2 * 2 * 24))


def test_a_layer_of_gpt_2_keeps_these_bytes_for_each_token() -> None:
    norms = 2 * (2 * 64 * 2 + 2 * 4)
    attention = 2 * 4 * 4 * 24 + 4 * 4
    assert layer_bytes(GPT2, SHAPE) == 96 * (norms + attention + 5 * 2 * 112)


def test_outside_of_the_layers_lie_the_last_norm_and_llamas_rotary_tables() -> None:
    assert outside_bytes(LLAMA, SHAPE) == 96 * (64 * 4 + 4 + 2 * 64 * 2) + 2 * 2 * 32 * 24
    assert outside_bytes(GPT2, SHAPE) == 96 * (2 * 64 * 2 + 2 * 4)
    assert outside_bytes(OPT, SHAPE) == 4 * 96 * 64


@pytest.mark.parametrize("element", [2, 4])
def test_a_published_layer_scales_with_the_element_and_has_scores_where_they_are_kept(element: int) -> None:
    shape = replace(SHAPE, element=element)
    assert layer_bytes(OPT, shape) == 96 * (18 * 64 + 4 * 112) * element // 2
    scores = layer_bytes(OPT, replace(shape, eager=True)) - layer_bytes(OPT, shape)
    assert scores == 5 * 4 * 32 * 96 * element // 2


def test_the_kept_bytes_are_those_of_all_layers_and_of_what_lies_outside() -> None:
    found = activations(trial(LLAMA, "bf16"), SHAPE)
    assert found.saved_bytes == 3 * layer_bytes(LLAMA, SHAPE) + outside_bytes(LLAMA, SHAPE)
    assert found.source == TALLY


def test_the_shape_is_that_of_one_micro_batch_of_the_trial() -> None:
    spec = trial(LLAMA, "bf16", "eager")
    assert trial_shape(spec) == Shape(BATCH * SEQUENCE, SEQUENCE, 64, 4, 2, 16, 112, 300, 2, 2, eager=True)
    assert trial_shape(trial(LLAMA, "fp32")).element == 4
    bare = {"model_type": "opt", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    assert trial_shape(trial(GPT2, "bf16")).num_kv_heads == 4
    assert trial_shape(trial(GPT2, "bf16")).intermediate_size == 4 * 64
    assert trial_shape(trial(bare | {"ffn_dim": 100}, "bf16")).intermediate_size == 100


@pytest.mark.parametrize("missing", ["hidden_size", "num_attention_heads", "vocab_size", "num_hidden_layers"])
def test_a_config_without_a_dimension_is_refused_in_one_line(missing: str) -> None:
    config = {"model_type": "unheard-of", **{key: value for key, value in LLAMA.items() if key != "model_type"}}
    trial_shape(trial(config, "bf16"))
    del config[missing]
    with pytest.raises(UserError, match="does not give the dimensions that the formulas need"):
        trial_shape(trial(config, "bf16"))


@pytest.mark.parametrize(("element", "entry"), [(2, 6), (4, 4)])
def test_chunked_logits_leave_the_gradients_of_the_head_and_of_its_input(element: int, entry: int) -> None:
    found = chunked_logits_bytes(replace(SHAPE, element=element))
    rows = chunk_rows(96, 64, 300)
    assert rows < 96
    assert found == Logits(
        saved_bytes=0,
        forward_peak_bytes=entry * rows * 300 + 8 * 96,
        backward_peak_bytes=0,
        gradient_bytes=0,
        head_gradient_bytes=element * 300 * 64,
        input_gradient_bytes=element * 96 * 64,
    )


def test_a_trial_has_the_logits_of_its_axis() -> None:
    full, chunked = (trial(LLAMA, "bf16", cross_entropy=name) for name in ("full", "chunked"))
    assert trial_logits(full) == logits_bytes(BATCH * SEQUENCE, 300, 2)
    assert trial_logits(chunked) == chunked_logits_bytes(trial_shape(chunked))


@pytest.mark.parametrize(
    ("heads", "key_heads", "width", "precision", "gpu", "keeps"),
    [
        (8, 2, 512, "fp32", "h100", True),
        (8, 2, 512, "bf16", "h100", False),
        (8, 2, 512, "fp32", None, False),
        (8, 8, 512, "fp32", "h100", False),
        (8, 8, 8 * 63, "fp32", "h100", True),
    ],
)
def test_in_fp32_a_gpu_has_a_kernel_for_as_many_key_heads_and_whole_16_bytes_alone(
    heads: int, key_heads: int, width: int, precision: str, gpu: str | None, keeps: bool
) -> None:
    config = LLAMA | {"hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": key_heads}
    spec = trial(config, precision, prediction={"gpu": gpu})
    assert keeps_scores(spec) is keeps
    assert trial_shape(spec).eager is keeps
