"""The parts of a model that its parameters are counted by."""

from enum import StrEnum


class Component(StrEnum):
    """What a parameter is for. Modules as built say so (rank/ledger/components.py), and lists of tensors
    (tensors.py).
    """

    TOKEN_EMBEDDINGS = "token_embeddings"  # noqa: S105 - a table of words, no secret
    """The table that tokens are looked up in; also the output head, where that is the same tensor."""
    POSITIONAL_EMBEDDINGS = "positional_embeddings"
    """Tables that say where a token is: positions, relative distances, segments."""
    ATTENTION = "attention"
    MLP = "mlp"
    """Feed-forward layers, and experts with their router."""
    NORMS = "norms"
    HEAD = "head"
    """What follows the last block: the language model's head, a classifier, a pooler."""
    OTHER = "other"
    """None of these: convolutions that read images or sound, state-space layers, projections between two widths."""

    @property
    def is_looked_up(self) -> bool:
        """Whether tokens are looked up in it, and not multiplied with it."""
        return self in {Component.TOKEN_EMBEDDINGS, Component.POSITIONAL_EMBEDDINGS}
