"""How many parameters a model has, and what each is for, without building it.

The closed forms are exact: tests hold them against transformers' own models, parameter by parameter. The worker
names the parameters of models that have no closed form here with `component_of`, so that both agree.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from zerobench.spec.architecture import complete
from zerobench.spec.model import ModelSpec


@dataclass(frozen=True)
class ParameterCounts:
    """Numbers of parameters by component; a tied head is counted once, under `token_embeddings`."""

    token_embeddings: int = 0
    positional_embeddings: int = 0
    attention: int = 0
    mlp: int = 0
    norms: int = 0
    head: int = 0
    other: int = 0
    """What is none of these, for example OPT's projections between embedding and hidden size."""

    @property
    def total(self) -> int:
        """All parameters."""
        return sum(self.by_component().values())

    def by_component(self) -> dict[str, int]:
        """Parameters by the component's name, in the model's order; `other` where there is any."""
        counts: dict[str, int] = vars(self)
        return {name: count for name, count in counts.items() if count or name != "other"}

    @classmethod
    def from_components(cls, counts: Mapping[str, int]) -> Self:
        """The counts that `by_component` gave, or a sum over `component_of`; unknown names go to `other`."""
        known = {field.name for field in fields(cls)} - {"other"}
        other = sum(count for name, count in counts.items() if name not in known)
        return cls(other=other, **{name: count for name, count in counts.items() if name in known})


def count_parameters(spec: ModelSpec) -> ParameterCounts | None:
    """Exact parameters of the causal language model of `spec`, or None where no closed form is known.

    Known are the types of `_CLOSED_FORMS`, as transformers 5 builds them.
    """
    config = complete(spec)
    count = _CLOSED_FORMS.get(spec.model_type)
    # A GPT-2 with cross attention is a decoder for another model's encoder, and none of ours.
    if count is None or config.get("add_cross_attention"):
        return None
    return count(config)


def _linear(inputs: int, outputs: int, *, bias: bool) -> int:
    return inputs * outputs + (outputs if bias else 0)


def _head(config: dict[str, Any], width: int) -> int:
    return 0 if config["tie_word_embeddings"] else config["vocab_size"] * width


def _gpt2(config: dict[str, Any]) -> ParameterCounts:
    """transformers.models.gpt2: biases everywhere, two norms a layer and one at the end."""
    hidden, layers = config["n_embd"], config["n_layer"]
    inner = config["n_inner"] or 4 * hidden
    return ParameterCounts(
        token_embeddings=config["vocab_size"] * hidden,
        positional_embeddings=config["n_positions"] * hidden,
        attention=layers * (_linear(hidden, 3 * hidden, bias=True) + _linear(hidden, hidden, bias=True)),
        mlp=layers * (_linear(hidden, inner, bias=True) + _linear(inner, hidden, bias=True)),
        norms=(2 * layers + 1) * 2 * hidden,
        head=_head(config, hidden),
    )


def _llama_like(config: dict[str, Any]) -> ParameterCounts:
    """transformers.models.llama and those made from it: gated MLP, RMS norms, grouped-query attention."""
    hidden, layers, inner = config["hidden_size"], config["num_hidden_layers"], config["intermediate_size"]
    heads, model_type = config["num_attention_heads"], config["model_type"]
    head_dim = config.get("head_dim") or hidden // heads
    queries, keys = heads * head_dim, (config["num_key_value_heads"] or heads) * head_dim
    bias = bool(config.get("attention_bias")) and model_type in {"llama", "qwen3", "gemma2"}
    qkv_bias = bias or model_type == "qwen2"  # qwen2 has biases on queries, keys and values alone
    attention = _linear(hidden, queries + 2 * keys, bias=qkv_bias) + _linear(queries, hidden, bias=bias)
    mlp_bias = bool(config.get("mlp_bias")) and model_type == "llama"
    mlp = 2 * _linear(hidden, inner, bias=mlp_bias) + _linear(inner, hidden, bias=mlp_bias)
    if experts := config.get("num_local_experts"):  # mixtral: so many MLPs a layer, and the router between them
        mlp = experts * mlp + _linear(hidden, experts, bias=False)
    norms = 4 * hidden if model_type == "gemma2" else 2 * hidden  # gemma2 norms what comes out too
    norms += 2 * head_dim if model_type == "qwen3" else 0  # qwen3 norms queries and keys too
    return ParameterCounts(
        token_embeddings=config["vocab_size"] * hidden,
        attention=layers * attention,
        mlp=layers * mlp,
        norms=layers * norms + hidden,
        head=_head(config, hidden),
    )


def _gpt_neox(config: dict[str, Any]) -> ParameterCounts:
    """transformers.models.gpt_neox: rotary positions, biases, two norms a layer and one at the end."""
    hidden, layers, inner = config["hidden_size"], config["num_hidden_layers"], config["intermediate_size"]
    bias = bool(config["attention_bias"])
    return ParameterCounts(
        token_embeddings=config["vocab_size"] * hidden,
        attention=layers * (_linear(hidden, 3 * hidden, bias=bias) + _linear(hidden, hidden, bias=bias)),
        mlp=layers * (_linear(hidden, inner, bias=True) + _linear(inner, hidden, bias=True)),
        norms=(2 * layers + 1) * 2 * hidden,
        head=_head(config, hidden),
    )


def _opt(config: dict[str, Any]) -> ParameterCounts:
    """transformers.models.opt: two position rows more than positions, embeddings of a width of their own."""
    hidden, layers, inner = config["hidden_size"], config["num_hidden_layers"], config["ffn_dim"]
    embedding, bias = config["word_embed_proj_dim"] or hidden, bool(config["enable_bias"])
    final_norm = config["do_layer_norm_before"] and not config["_remove_final_layer_norm"]
    norm = 2 * hidden if config["layer_norm_elementwise_affine"] else 0
    return ParameterCounts(
        token_embeddings=config["vocab_size"] * embedding,
        positional_embeddings=(config["max_position_embeddings"] + 2) * hidden,
        attention=layers * 4 * _linear(hidden, hidden, bias=bias),
        mlp=layers * (_linear(hidden, inner, bias=bias) + _linear(inner, hidden, bias=bias)),
        norms=(2 * layers + bool(final_norm)) * norm,
        head=_head(config, embedding),
        other=2 * hidden * embedding if embedding != hidden else 0,
    )


_CLOSED_FORMS: dict[str, Callable[[dict[str, Any]], ParameterCounts]] = {
    "gpt2": _gpt2,
    "llama": _llama_like,
    "mistral": _llama_like,
    "mixtral": _llama_like,
    "gemma2": _llama_like,
    "phi3": _llama_like,
    "qwen2": _llama_like,
    "qwen3": _llama_like,
    "gpt_neox": _gpt_neox,
    "opt": _opt,
}

_COMPONENT_OF_SEGMENT: tuple[tuple[str, re.Pattern[str]], ...] = (
    # Norms first: `post_attention_layernorm` and `attention_norm` are norms, not attention.
    ("norms", re.compile(r".*norm\d*|norm_\w+|ln|ln_.*|.*_ln")),
    ("positional_embeddings", re.compile(r"wpe|embed_positions?|pos(ition)?(al)?_(embed|emb|embeddings?)")),
    ("token_embeddings", re.compile(r"wte|embed_tokens|embed_in|(word|tok|token)_embeddings?|embd")),
    ("head", re.compile(r"lm_head|embed_out|output_head|unembed(ding)?")),
    (
        "attention",
        re.compile(
            r"(self_|cross_)?(attn|attention)|(self|cross)attention|[qkvo]_proj|qkv(_proj)?|wqkv|w[qkvo]|query_key_value"
        ),
    ),
    ("mlp", re.compile(r".*mlp|ffn|feed_?forward|fc[12]|experts?|shared_experts?|block_sparse_moe|router")),
)


def component_of(parameter_name: str) -> str:
    """The component that the parameter called `parameter_name` belongs to, by the name alone.

    One of token_embeddings, positional_embeddings, attention, mlp, norms, head, or `other` where no part of the
    dotted name says so. The innermost part that says anything decides: `self_attn.q_norm.weight` is a norm.
    """
    if parameter_name == "output.weight":  # the head, in models that follow Llama's reference code
        return "head"
    for segment in reversed(parameter_name.split(".")):
        for component, pattern in _COMPONENT_OF_SEGMENT:
            if pattern.fullmatch(segment):
                return component
    return "other"
