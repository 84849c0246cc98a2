"""Reads the dimensions of a transformers config under one set of names, without importing transformers.

A config may omit what transformers fills in, and architectures spell the same dimension differently. The defaults of
architectures with a closed form are repeated here; a test compares them with transformers' own classes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from zerobench.common.errors import UserError
from zerobench.config.trial.model import ModelSpec

_SIZES_LIKE_LLAMA = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)


def _like_llama(*sizes: int | None, **more: Any) -> dict[str, Any]:
    """Defaults of a config class derived from Llama's: the sizes of _SIZES_LIKE_LLAMA, and its own."""
    return {**dict(zip(_SIZES_LIKE_LLAMA, sizes, strict=True)), "tie_word_embeddings": False, **more}


DEFAULTS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_inner": None,
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    "llama": _like_llama(32000, 4096, 11008, 32, 32, None, 2048, head_dim=None, attention_bias=False, mlp_bias=False),
    "mistral": _like_llama(32000, 4096, 14336, 32, 32, 8, 131072, head_dim=None, sliding_window=4096),
    "mixtral": _like_llama(
        32000, 4096, 14336, 32, 32, 8, 131072, head_dim=None, num_local_experts=8, sliding_window=None
    ),
    "gemma2": _like_llama(
        *(256000, 2304, 9216, 26, 8, 4, 8192),
        head_dim=256,
        attention_bias=False,
        sliding_window=4096,
        tie_word_embeddings=True,
    ),
    "phi3": _like_llama(
        32064, 3072, 8192, 32, 32, None, 4096, head_dim=None, resid_pdrop=0.0, embd_pdrop=0.0, sliding_window=None
    ),
    "qwen2": _like_llama(151936, 4096, 22016, 32, 32, 32, 32768, use_sliding_window=False, sliding_window=4096),
    "qwen3": _like_llama(
        *(151936, 4096, 22016, 32, 32, 32, 32768),
        head_dim=128,
        attention_bias=False,
        use_sliding_window=False,
        sliding_window=4096,
    ),
    "gpt_neox": {
        "vocab_size": 50432,
        "hidden_size": 6144,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "intermediate_size": 24576,
        "max_position_embeddings": 2048,
        "attention_bias": True,
        "tie_word_embeddings": False,
    },
    "opt": {
        "vocab_size": 50272,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "ffn_dim": 3072,
        "num_attention_heads": 12,
        "max_position_embeddings": 2048,
        "word_embed_proj_dim": None,
        "dropout": 0.1,
        "do_layer_norm_before": True,
        "_remove_final_layer_norm": False,
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
        "tie_word_embeddings": True,
    },
}
"""By model type: defaults of its transformers config class (transformers 5)."""

_ALIASES: dict[str, dict[str, str]] = {
    "gpt2": {
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
}
"""Alternative spellings that a config class accepts (its `attribute_map`)."""

SPELLINGS: dict[str, tuple[str, ...]] = {
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocab_size": ("vocab_size",),
    "max_positions": ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len"),
}

_LARGEST_SIZE = 2**31 - 1
_LARGEST = {"num_layers": 100_000}
"""Every layer is counted and simulated by itself: a thousand times the deepest trained model is enough."""
_PRINTED = 10**30
_MAY_BE_NULL = {"num_kv_heads", "head_dim"}


@dataclass(frozen=True)
class Dimensions:
    """Sizes of a decoder-only transformer; None if its config does not have one."""

    num_layers: int | None
    hidden_size: int | None
    num_heads: int | None
    num_kv_heads: int | None
    head_dim: int | None
    intermediate_size: int | None
    vocab_size: int | None
    max_positions: int | None


def complete(spec: ModelSpec) -> dict[str, Any]:
    """Config of the text model, with defaults filled in where known here, and one spelling per key."""
    nested = spec.hf_config.get("text_config")  # of the language model, where the model has other parts too
    config = nested if isinstance(nested, dict) else spec.hf_config
    aliases = _ALIASES.get(spec.model_type, {})
    native = {aliases.get(key, key): value for key, value in config.items()}
    return DEFAULTS.get(spec.model_type, {}) | native


def dimensions(spec: ModelSpec) -> Dimensions:
    """Sizes of `spec`; `head_dim` defaults to hidden_size / num_heads."""
    config = complete(spec)
    sizes = {
        name: next((config[key] for key in keys if isinstance(config.get(key), int)), None)
        for name, keys in SPELLINGS.items()
    }
    hidden_size, num_heads = sizes["hidden_size"], sizes["num_heads"]
    if sizes["head_dim"] is None and hidden_size and num_heads:
        sizes["head_dim"] = hidden_size // num_heads
    if sizes["num_kv_heads"] is None:
        sizes["num_kv_heads"] = num_heads
    return Dimensions(**sizes)


def max_positions(spec: ModelSpec) -> int | None:
    """Longest sequence in tokens that the model accepts (rotary models: is trained for), or None."""
    return dimensions(spec).max_positions


_LEARNED_POSITIONS = frozenset({"gpt2", "opt", "gpt_bigcode"})
"""Architectures with a table of positions, which ends, unlike rotary positions."""


def position_limit(spec: ModelSpec) -> int | None:
    """Longest sequence in tokens that the model can process; None if its positions are computed."""
    return max_positions(spec) if spec.model_type in _LEARNED_POSITIONS else None


def has_dropout(spec: ModelSpec) -> bool:
    """Return whether training drops anything, so that losses of two strategies may differ.

    Architectures whose defaults are unknown here are judged by their config.
    """
    return any(
        value > 0
        for key, value in _numbers(complete(spec))
        # Heads for classification and summaries are not part of a causal language model.
        if ("dropout" in key or "pdrop" in key or "layerdrop" in key) and not key.startswith(("classifier", "summary"))
    )


def _numbers(config: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield key, value


def check_dimensions(spec: ModelSpec, where: str) -> None:
    """Raise UserError, naming the config's own key, for impossible sizes.

    Sizes must be positive integers, heads must divide the hidden size unless their own size is given, and key and value
    heads must divide the heads.
    """
    _check_aliases(spec, where)
    config = complete(spec)
    for name, keys in SPELLINGS.items():
        for key in keys:
            _check_size(config.get(key), f"{where}: {key}", _LARGEST.get(name, _LARGEST_SIZE))
    _check_given(spec, config, where)
    size = dimensions(spec)
    divided = "head_dim" not in config or config["head_dim"] is None or spec.model_type == "llama"
    if divided and size.hidden_size and size.num_heads and size.hidden_size % size.num_heads:
        raise UserError(
            f"{where}: hidden size {size.hidden_size} is not divisible by the number of heads {size.num_heads}"
        )
    if size.num_heads and size.num_kv_heads and size.num_heads % size.num_kv_heads:
        raise UserError(
            f"{where}: the number of heads {size.num_heads} is not divisible by num_key_value_heads {size.num_kv_heads}"
        )


def _check_aliases(spec: ModelSpec, where: str) -> None:
    for alias, native in _ALIASES.get(spec.model_type, {}).items():
        both = spec.hf_config.get(alias), spec.hf_config.get(native)
        if None not in both and both[0] != both[1]:
            raise UserError(
                f"{where}: {alias} {both[0]!r} and {native} {both[1]!r} mean the same size; give one of them"
            )


def _check_given(spec: ModelSpec, config: dict[str, Any], where: str) -> None:
    # A null replaces a default and fails at construction, except for sizes where it means the usual one
    for key, usual in DEFAULTS.get(spec.model_type, {}).items():
        named = any(key in keys for name, keys in SPELLINGS.items() if name not in _MAY_BE_NULL)
        if named and usual is not None and config[key] is None:
            raise UserError(f"{where}: {key}: null; must be a positive integer; without the key: {usual}")


def _check_size(value: object, where: str, largest: int) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise UserError(f"{where}: {value!r}; must be a positive integer")
    if isinstance(value, int) and value > largest:
        shown = str(value) if value < _PRINTED else "a number with too many digits"
        raise UserError(f"{where}: {shown}; at most {largest}")
