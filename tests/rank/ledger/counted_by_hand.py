"""Parameters of transformers' architectures by component, added up by hand from the sizes in their configs.

Written from the papers' and the models' own shapes, not from the names of parameters: each entry says which class is
built, what differs from the defaults of its config, and the counts. Layers stand for `num_layers` of the config.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Counts = dict[str, int]


@dataclass(frozen=True)
class Architecture:
    model_type: str
    auto_class: str
    count: Callable[[Any], Counts]
    config: dict[str, Any] = field(default_factory=dict)


def lin(inputs: int, outputs: int, bias: int = 1) -> int:
    """A matrix, and a bias for each output."""
    return inputs * outputs + bias * outputs


def plain(hidden: int, inner: int, bias: int = 1) -> int:
    """An MLP of two matrices."""
    return lin(hidden, inner, bias) + lin(inner, hidden, bias)


def gated(hidden: int, inner: int) -> int:
    """An MLP of three matrices without biases, as Llama's."""
    return 3 * hidden * inner


def grouped(c: Any, qkv_bias: int = 0, bias: int = 0) -> int:
    """Attention with fewer heads for keys and values than for queries."""
    head = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    queries, keys = c.num_attention_heads * head, (c.num_key_value_heads or c.num_attention_heads) * head
    return (
        lin(c.hidden_size, queries, qkv_bias)
        + 2 * lin(c.hidden_size, keys, qkv_bias)
        + lin(queries, c.hidden_size, bias)
    )


def decoder(
    c: Any, attention: int, mlp: int, norms: int, final: int, *, head_bias: int = 0, tied: bool | None = None
) -> Counts:
    """Rotary decoders: attention, MLP and norms of one layer, and the norm after the last one."""
    layers, tokens = c.num_hidden_layers, c.vocab_size * c.hidden_size
    is_tied = c.tie_word_embeddings if tied is None else tied
    return {
        "token_embeddings": tokens,
        "attention": layers * attention,
        "mlp": layers * mlp,
        "norms": layers * norms + final,
        "head": 0 if is_tied else tokens + head_bias * c.vocab_size,
    }


def llama(c: Any, mlp: int | None = None, qkv_bias: int = 0, norms: int = 2, more_norms: int = 0) -> Counts:
    h = c.hidden_size
    inner = gated(h, c.intermediate_size) if mlp is None else mlp
    return decoder(c, grouped(c, qkv_bias), inner, norms * h + more_norms, h)


def experts(c: Any, number: int, inner: int) -> int:
    """Gated MLPs, and the router that chooses among them."""
    return number * (gated(c.hidden_size, inner) + int(c.hidden_size))


def gpt2(c: Any) -> Counts:
    h = c.n_embd
    return {
        "token_embeddings": c.vocab_size * h,
        "positional_embeddings": c.n_positions * h,
        "attention": c.n_layer * (lin(h, 3 * h) + lin(h, h)),
        "mlp": c.n_layer * plain(h, 4 * h),
        "norms": (2 * c.n_layer + 1) * 2 * h,
    }


def gpt_bigcode(c: Any) -> Counts:
    """GPT-2 with one head for all keys and one for all values."""
    h = c.n_embd
    return gpt2(c) | {"attention": c.n_layer * (lin(h, h + 2 * (h // c.n_head)) + lin(h, h))}


def gpt_neo(c: Any) -> Counts:
    h, layers = c.hidden_size, c.num_layers
    return {
        "token_embeddings": c.vocab_size * h,
        "positional_embeddings": c.max_position_embeddings * h,
        "attention": layers * (3 * lin(h, h, 0) + lin(h, h)),
        "mlp": layers * plain(h, 4 * h),
        "norms": (2 * layers + 1) * 2 * h,
    }


def gptj(c: Any) -> Counts:
    """Attention without biases beside the MLP, both after the one norm of a layer; a head with a bias."""
    h, tokens = c.n_embd, c.vocab_size * c.n_embd
    return {
        "token_embeddings": tokens,
        "attention": c.n_layer * 4 * lin(h, h, 0),
        "mlp": c.n_layer * plain(h, 4 * h),
        "norms": (c.n_layer + 1) * 2 * h,
        "head": tokens + c.vocab_size,
    }


def gpt_neox(c: Any) -> Counts:
    h = c.hidden_size
    return decoder(c, 4 * lin(h, h), plain(h, c.intermediate_size), 4 * h, 2 * h)


def phi(c: Any) -> Counts:
    h = c.hidden_size
    return decoder(c, 4 * lin(h, h), plain(h, c.intermediate_size), 2 * h, 2 * h, head_bias=1)


def falcon(c: Any) -> Counts:
    """All heads of queries share one of keys and one of values."""
    h = c.hidden_size
    attention = lin(h, h + 2 * (h // c.num_attention_heads), 0) + lin(h, h, 0)
    return decoder(c, attention, plain(h, 4 * h, 0), 2 * h, 2 * h, tied=True)


def bloom(c: Any) -> Counts:
    """A norm after the token table too."""
    h = c.hidden_size
    counts = decoder(c, lin(h, 3 * h) + lin(h, h), plain(h, 4 * h), 4 * h, 2 * h, tied=True)
    return counts | {"norms": counts["norms"] + 2 * h}


def mpt(c: Any) -> Counts:
    h, layers = c.d_model, c.n_layers
    return {
        "token_embeddings": c.vocab_size * h,
        "attention": layers * 4 * h * h,
        "mlp": layers * plain(h, 4 * h, 0),
        "norms": (2 * layers + 1) * h,
    }


def opt(c: Any) -> Counts:
    h = c.hidden_size
    counts = decoder(c, 4 * lin(h, h), plain(h, c.ffn_dim), 4 * h, 2 * h, tied=True)
    return counts | {"positional_embeddings": (c.max_position_embeddings + 2) * h}


def gemma3(c: Any) -> Counts:
    return llama(c, norms=4, more_norms=2 * c.head_dim)


def stablelm(c: Any) -> Counts:
    h = c.hidden_size
    return decoder(c, grouped(c), gated(h, c.intermediate_size), 4 * h, 2 * h)


def starcoder2(c: Any) -> Counts:
    h = c.hidden_size
    return decoder(c, grouped(c, 1, 1), plain(h, c.intermediate_size), 4 * h, 2 * h)


def deepseek_v3(c: Any) -> Counts:
    """Attention through low ranks; dense layers first, then experts, shared ones among them."""
    h, layers, dense = c.hidden_size, c.num_hidden_layers, c.first_k_dense_replace
    heads, nope, rope = c.num_attention_heads, c.qk_nope_head_dim, c.qk_rope_head_dim
    queries = h * c.q_lora_rank + c.q_lora_rank * heads * (nope + rope)
    keys_values = h * (c.kv_lora_rank + rope) + c.kv_lora_rank * heads * (nope + c.v_head_dim)
    mixture = experts(c, c.n_routed_experts, c.moe_intermediate_size)
    mixture += gated(h, c.moe_intermediate_size * c.n_shared_experts)
    return {
        "token_embeddings": c.vocab_size * h,
        "attention": layers * (queries + keys_values + heads * c.v_head_dim * h),
        "mlp": dense * gated(h, c.intermediate_size) + (layers - dense) * mixture,
        "norms": layers * (2 * h + c.q_lora_rank + c.kv_lora_rank) + h,
        "head": c.vocab_size * h,
    }


def mamba(c: Any) -> Counts:
    """No attention and no MLP: all of a layer but its norm is a state-space mixer."""
    h, inner, rank, state = c.hidden_size, c.intermediate_size, c.time_step_rank, c.state_size
    mixer = lin(h, 2 * inner, 0) + lin(inner, h, 0)
    mixer += inner * c.conv_kernel + inner  # the convolution of each channel, and its bias
    mixer += inner * (rank + 2 * state) + lin(rank, inner)
    mixer += inner * state + inner  # A and D
    return {
        "token_embeddings": c.vocab_size * h,
        "norms": (c.num_hidden_layers + 1) * h,
        "other": c.num_hidden_layers * mixer,
    }


def rwkv(c: Any) -> Counts:
    h, inner, layers = c.hidden_size, c.intermediate_size, c.num_hidden_layers
    return {
        "token_embeddings": c.vocab_size * h,
        "attention": layers * (4 * h * c.attention_hidden_size + 2 * c.attention_hidden_size + 3 * h),
        "mlp": layers * (2 * h * inner + h * h + 2 * h),
        "norms": (2 * layers + 2) * 2 * h,
        "head": c.vocab_size * h,
    }


def bert(c: Any, attention: int = 4) -> Counts:
    """With its head for masked words: a layer, a norm, and a bias for each word beside the tied table."""
    h, layers = c.hidden_size, c.num_hidden_layers
    return {
        "token_embeddings": c.vocab_size * h,
        "positional_embeddings": (c.max_position_embeddings + c.type_vocab_size) * h,
        "attention": layers * attention * lin(h, h),
        "mlp": layers * plain(h, c.intermediate_size),
        "norms": (2 * layers + 2) * 2 * h,
        "head": lin(h, h) + c.vocab_size,
    }


def distilbert(c: Any) -> Counts:
    h, layers = c.dim, c.n_layers
    return {
        "token_embeddings": c.vocab_size * h,
        "positional_embeddings": c.max_position_embeddings * h,
        "attention": layers * 4 * lin(h, h),
        "mlp": layers * plain(h, c.hidden_dim),
        "norms": (2 * layers + 2) * 2 * h,
        "head": lin(h, h) + c.vocab_size,
    }


def narrow_table(c: Any, layers: int) -> Counts:
    """ELECTRA and ALBERT: a table that is narrower than the model, and a projection to its width."""
    h, width = c.hidden_size, c.embedding_size
    return {
        "token_embeddings": c.vocab_size * width,
        "positional_embeddings": (c.max_position_embeddings + c.type_vocab_size) * width,
        "attention": layers * 4 * lin(h, h),
        "mlp": layers * plain(h, c.intermediate_size),
        "norms": 2 * width + layers * 4 * h + 2 * width,
        "head": lin(h, width) + c.vocab_size,
        "other": lin(width, h),
    }


def xlnet(c: Any) -> Counts:
    """Relative attention: five matrices, three biases and a table of two segments; a vector for masked words."""
    h, layers = c.d_model, c.n_layer
    return {
        "token_embeddings": c.vocab_size * h,
        "attention": layers * (5 * h * h + 3 * h + 2 * h),
        "mlp": layers * plain(h, c.d_inner),
        "norms": layers * 4 * h,
        "head": c.vocab_size,
        "other": h,
    }


def t5(c: Any, mlp: int) -> Counts:
    """Tied, as T5 is; relative positions stand in one table for the encoder and one for the decoder."""
    d, encoders, decoders = c.d_model, c.num_layers, c.num_decoder_layers
    return {
        "token_embeddings": c.vocab_size * d,
        "positional_embeddings": 2 * c.relative_attention_num_buckets * c.num_heads,
        "attention": (encoders + 2 * decoders) * 4 * d * c.num_heads * c.d_kv,
        "mlp": (encoders + decoders) * mlp,
        "norms": (2 * encoders + 3 * decoders + 2) * d,
    }


def bart(c: Any, positions: int, norms_outside: int, attention: int | None = None) -> Counts:
    d, encoders, decoders = c.d_model, c.encoder_layers, c.decoder_layers
    return {
        "token_embeddings": c.vocab_size * d,
        "positional_embeddings": positions * d,
        "attention": (encoders + 2 * decoders) * (4 * lin(d, d) if attention is None else attention),
        "mlp": encoders * plain(d, c.encoder_ffn_dim) + decoders * plain(d, c.decoder_ffn_dim),
        "norms": (2 * encoders + 3 * decoders + norms_outside) * 2 * d,
    }


def led(c: Any) -> Counts:
    """The encoder's attention has queries, keys and values for global tokens too."""
    d = c.d_model
    positions = c.max_encoder_position_embeddings + c.max_decoder_position_embeddings
    counts = bart(c, positions, norms_outside=2)
    return counts | {"attention": c.encoder_layers * 7 * lin(d, d) + c.decoder_layers * 8 * lin(d, d)}


def whisper(c: Any) -> Counts:
    """Keys have no bias; two convolutions read the spectrogram."""
    d = c.d_model
    counts = bart(c, c.max_source_positions + c.max_target_positions, 2, attention=4 * d * d + 3 * d)
    return counts | {"other": lin(3 * c.num_mel_bins, d) + lin(3 * d, d)}


def vit(c: Any) -> Counts:
    """With a classifier; a convolution reads the patches, and one more token stands for the class."""
    h, layers, patches = c.hidden_size, c.num_hidden_layers, (c.image_size // c.patch_size) ** 2
    return {
        "positional_embeddings": (patches + 1) * h,
        "attention": layers * 4 * lin(h, h),
        "mlp": layers * plain(h, c.intermediate_size),
        "norms": (2 * layers + 1) * 2 * h,
        "head": lin(h, c.num_labels),
        "other": lin(c.num_channels * c.patch_size**2, h) + h,
    }


def clip(c: Any) -> Counts:
    """A tower for text and one for images, each with a projection, and the temperature of the loss."""
    text, vision = c.text_config, c.vision_config
    t, v = text.hidden_size, vision.hidden_size
    patches = (vision.image_size // vision.patch_size) ** 2
    towers = (
        (text.num_hidden_layers, t, text.intermediate_size),
        (vision.num_hidden_layers, v, vision.intermediate_size),
    )
    return {
        "token_embeddings": text.vocab_size * t,
        "positional_embeddings": text.max_position_embeddings * t + (patches + 1) * v,
        "attention": sum(layers * 4 * lin(h, h) for layers, h, _ in towers),
        "mlp": sum(layers * plain(h, inner) for layers, h, inner in towers),
        "norms": (2 * text.num_hidden_layers + 1) * 2 * t + (2 * vision.num_hidden_layers + 2) * 2 * v,
        "other": 3 * vision.patch_size**2 * v + v + (t + v) * c.projection_dim + 1,
    }


def wav2vec2(c: Any) -> Counts:
    """For CTC. Convolutions read the sound, the first with a norm of its channels, and one tells positions, as a
    magnitude for each place of its kernel and a direction.
    """
    h, layers, kernel = c.hidden_size, c.num_hidden_layers, c.num_conv_pos_embeddings
    widths = (1, *c.conv_dim)
    read = sum(
        inputs * outputs * kernel
        for inputs, outputs, kernel in zip(widths[:-1], widths[1:], c.conv_kernel, strict=True)
    )
    return {
        "positional_embeddings": kernel + h * (h // c.num_conv_pos_embedding_groups) * kernel + h,
        "attention": layers * 4 * lin(h, h),
        "mlp": layers * plain(h, c.intermediate_size),
        "norms": 2 * c.conv_dim[0] + 2 * c.conv_dim[-1] + (2 * layers + 1) * 2 * h,
        "head": lin(h, c.vocab_size),
        "other": read + lin(c.conv_dim[-1], h) + h,
    }


CAUSAL, MASKED, SEQ2SEQ = "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForSeq2SeqLM"

ARCHITECTURES = (
    Architecture("gpt2", CAUSAL, gpt2),
    Architecture("gpt_bigcode", CAUSAL, gpt_bigcode),
    Architecture("gpt_neo", CAUSAL, gpt_neo),
    Architecture("gptj", CAUSAL, gptj),
    Architecture("codegen", CAUSAL, gptj),
    Architecture("gpt_neox", CAUSAL, gpt_neox),
    Architecture("phi", CAUSAL, phi),
    Architecture("falcon", CAUSAL, falcon),
    Architecture("bloom", CAUSAL, bloom),
    Architecture("mpt", CAUSAL, mpt),
    Architecture("opt", CAUSAL, opt),
    Architecture("llama", CAUSAL, llama),
    Architecture("mistral", CAUSAL, llama),
    Architecture("phi3", CAUSAL, llama),
    Architecture("granite", CAUSAL, llama),
    Architecture("gemma", CAUSAL, llama),
    Architecture("gemma2", CAUSAL, lambda c: llama(c, norms=4)),
    Architecture("gemma3_text", CAUSAL, gemma3),
    Architecture("qwen2", CAUSAL, lambda c: llama(c, qkv_bias=1)),
    Architecture("qwen3", CAUSAL, lambda c: llama(c, more_norms=2 * c.head_dim)),
    Architecture("olmo", CAUSAL, lambda c: llama(c, norms=0) | {"norms": 0}),  # its norms have no weights
    Architecture("cohere", CAUSAL, lambda c: llama(c, norms=1)),
    Architecture("stablelm", CAUSAL, stablelm),
    Architecture("starcoder2", CAUSAL, starcoder2),
    Architecture("mixtral", CAUSAL, lambda c: llama(c, experts(c, c.num_local_experts, c.intermediate_size))),
    Architecture(
        "qwen3_moe",
        CAUSAL,
        lambda c: llama(c, experts(c, c.num_experts, c.moe_intermediate_size), more_norms=2 * c.head_dim),
        {"head_dim": 128},
    ),
    Architecture(
        "olmoe",
        CAUSAL,
        lambda c: llama(c, experts(c, c.num_experts, c.intermediate_size), more_norms=2 * c.hidden_size),
    ),
    Architecture("deepseek_v3", CAUSAL, deepseek_v3),
    Architecture("mamba", CAUSAL, mamba),
    Architecture("rwkv", CAUSAL, rwkv),
    Architecture("xlnet", CAUSAL, xlnet),
    Architecture("bert", MASKED, bert),
    Architecture("roberta", MASKED, bert),
    # Its pooler is a bare layer beside the blocks, which neither a class nor a role tells from any other.
    Architecture("big_bird", MASKED, lambda c: bert(c) | {"other": lin(c.hidden_size, c.hidden_size)}),
    Architecture("longformer", MASKED, lambda c: bert(c, attention=7)),  # queries, keys, values of global tokens too
    Architecture("deberta-v2", MASKED, bert),
    Architecture("distilbert", MASKED, distilbert),
    Architecture("electra", MASKED, lambda c: narrow_table(c, c.num_hidden_layers)),
    Architecture("albert", MASKED, lambda c: narrow_table(c, 1)),  # one layer, used again and again
    Architecture("t5", SEQ2SEQ, lambda c: t5(c, plain(c.d_model, c.d_ff, 0))),
    Architecture("mt5", SEQ2SEQ, lambda c: t5(c, gated(c.d_model, c.d_ff))),
    Architecture("bart", SEQ2SEQ, lambda c: bart(c, 2 * (c.max_position_embeddings + 2), norms_outside=2)),
    Architecture("mbart", SEQ2SEQ, lambda c: bart(c, 2 * (c.max_position_embeddings + 2), norms_outside=4)),
    Architecture("pegasus", SEQ2SEQ, lambda c: bart(c, 2 * c.max_position_embeddings, norms_outside=2)),
    Architecture("led", SEQ2SEQ, led),
    Architecture("whisper", "AutoModelForSpeechSeq2Seq", whisper),
    Architecture("wav2vec2", "AutoModelForCTC", wav2vec2),
    Architecture("vit", "AutoModelForImageClassification", vit),
    Architecture("clip", "AutoModel", clip),
)
