"""Parameter counts of a model by component, without building it.

The closed forms are exact: tests compare them with transformers' own models, parameter by parameter. For a built model
the component follows from the modules (rank/ledger/components.py).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from zerobench.config.models.tensors import layout_of
from zerobench.config.trial.model import ModelSpec


@dataclass(frozen=True)
class ParameterCounts:
    """Parameters by component; a tied head is counted once, under `token_embeddings`."""

    token_embeddings: int = 0
    positional_embeddings: int = 0
    attention: int = 0
    mlp: int = 0
    norms: int = 0
    head: int = 0
    other: int = 0
    """The rest, for example OPT's projections between embedding and hidden size."""

    @property
    def total(self) -> int:
        return sum(self.component_counts().values())

    def component_counts(self) -> dict[str, int]:
        """Parameters by the component's name, in the model's order; `other` only if there are any."""
        counts: dict[str, int] = vars(self)
        return {name: count for name, count in counts.items() if count or name != "other"}

    @classmethod
    def from_components(cls, counts: Mapping[str, int]) -> Self:
        """Counts from a mapping of components, or a sum over a model's parameters; unknown names count as `other`."""
        known = {field.name for field in fields(cls)} - {"other"}
        other = sum(count for name, count in counts.items() if name not in known)
        return cls(other=other, **{name: count for name, count in counts.items() if name in known})


def count_parameters(spec: ModelSpec) -> ParameterCounts | None:
    """Exact parameters of the causal language model of `spec`, or None without a closed form."""
    layout = layout_of(spec)
    if layout is None:
        return None
    counts: Counter[str] = Counter()
    for tensors, times in ((layout.before, 1), (layout.layer, layout.num_layers), (layout.after, 1)):
        for tensor in tensors:
            counts[tensor.component] += times * tensor
    return ParameterCounts.from_components(counts)


def num_parameters(spec: ModelSpec) -> int | None:
    """Total parameters of the model of `spec`, or None without a closed form."""
    counts = count_parameters(spec)
    return None if counts is None else counts.total
