"""A model given by its transformers config, and the parts by which its parameters are counted.

Models are built with random weights; nothing is downloaded.
"""

from enum import StrEnum
from typing import Any

from pydantic import Field

from zerobench.config.trial.base import Spec


class Component(StrEnum):
    """Part of a model that a parameter belongs to, from built modules (rank/ledger/components.py) or lists of tensors
    (tensors.py).
    """

    TOKEN_EMBEDDINGS = "token_embeddings"  # noqa: S105 - a table of words, no secret
    """Table of token embeddings; also the output head, if that is the same tensor."""
    POSITIONAL_EMBEDDINGS = "positional_embeddings"
    """Tables of positions, relative distances or segments."""
    ATTENTION = "attention"
    MLP = "mlp"
    """Feed-forward layers, and experts with their router."""
    NORMS = "norms"
    HEAD = "head"
    """Everything after the last block: the language model's head, a classifier, a pooler."""
    OTHER = "other"
    """The rest: convolutions for images or sound, state-space layers, projections between two widths."""

    @property
    def is_looked_up(self) -> bool:
        """Return whether it is looked up by token, not multiplied."""
        return self in {Component.TOKEN_EMBEDDINGS, Component.POSITIONAL_EMBEDDINGS}


class ModelSpec(Spec):
    """A causal language model: name in tables, and transformers config."""

    name: str = Field(min_length=1)
    """Preset name, or the user's own."""
    hf_config: dict[str, Any]
    """Arguments of `transformers.AutoConfig.for_model`, `model_type` among them."""

    @property
    def model_type(self) -> str:
        """Transformers architecture, for example `gpt2` or `llama`."""
        return str(self.hf_config["model_type"])
