"""What a parameter of a model is for, by its name."""

import re
from functools import cache

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


@cache
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
