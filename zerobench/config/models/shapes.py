"""A model given by its dimensions, in the field's terms, and its transformers config.

Presets are such shapes, so a preset and a user's shape are built alike. Dropout is zero, because losses must agree
between strategies, and caching is off, because nothing is generated. Rotary settings stay at transformers' defaults:
they change no count, byte or FLOP.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from zerobench.config.trial.base import Spec
from zerobench.config.trial.model import ModelSpec

Size = Annotated[int, Field(strict=True, ge=1)]


class Shape(Spec):
    """Dimensions of a GPT-2 or Llama model; omitted ones follow the family's own release."""

    family: Literal["llama", "gpt2"]
    name: str | None = Field(default=None, min_length=1)
    """Name in tables; by default made from family, layers and hidden size."""
    num_layers: Size
    hidden_size: Size
    num_heads: Size
    """Attention (query) heads."""
    num_kv_heads: Size | None = None
    """Key and value heads of grouped-query attention (Llama only); as many as `num_heads` by default."""
    intermediate_size: Size | None = None
    """Width of the MLP; 4 x hidden_size for gpt2, 8/3 x hidden_size rounded up to 256 for llama."""
    vocab_size: Size | None = None
    """Rows of the token embedding; 50257 for gpt2, 32000 for llama."""
    max_position_embeddings: Size | None = None
    """Longest sequence; 1024 for gpt2, 4096 for llama."""
    tie_word_embeddings: bool | None = None
    """Whether the output head is the token embedding; yes for gpt2, no for llama."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not divisible by num_heads {self.num_heads}")
        if self.num_kv_heads is not None and self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is not divisible by num_kv_heads {self.num_kv_heads}")
        if self.family == "gpt2" and self.num_kv_heads not in {None, self.num_heads}:
            raise ValueError(
                f"num_kv_heads {self.num_kv_heads} differs from num_heads {self.num_heads}, "
                "and gpt2 has no grouped-query attention; choices: leave it out, or family llama"
            )
        return self

    def model_spec(self) -> ModelSpec:
        """Model of this shape: its name and the arguments of `transformers.AutoConfig.for_model`."""
        name = self.name or f"{self.family}-{self.num_layers}x{self.hidden_size}"
        return ModelSpec(name=name, hf_config=_gpt2(self) if self.family == "gpt2" else _llama(self))


def _gpt2(shape: Shape) -> dict[str, Any]:
    """Arguments of GPT2Config; its special tokens would exceed a small vocabulary."""
    return {
        "model_type": "gpt2",
        "vocab_size": shape.vocab_size or 50257,
        "n_positions": shape.max_position_embeddings or 1024,
        "n_embd": shape.hidden_size,
        "n_layer": shape.num_layers,
        "n_head": shape.num_heads,
        "n_inner": shape.intermediate_size or 4 * shape.hidden_size,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "tie_word_embeddings": shape.tie_word_embeddings is not False,
        "bos_token_id": None,
        "eos_token_id": None,
        "use_cache": False,
    }


def _llama(shape: Shape) -> dict[str, Any]:
    """Arguments of LlamaConfig; the MLP's default width is that of Llama's reference code (FeedForward)."""
    return {
        "model_type": "llama",
        "vocab_size": shape.vocab_size or 32000,
        "max_position_embeddings": shape.max_position_embeddings or 4096,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size or -(-(8 * shape.hidden_size // 3) // 256) * 256,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads or shape.num_heads,
        "attention_dropout": 0.0,
        "tie_word_embeddings": shape.tie_word_embeddings is True,
        "bos_token_id": None,
        "eos_token_id": None,
        "use_cache": False,
    }
