"""Global norm of each step's gradients before clipping, as reported by strategies.

It reveals errors that losses cannot: a common factor on all gradients changes nothing under AdamW, nor under SGD with
clipping. With clipping the norm is known anyway. Without, it is computed only in warm-up steps, which are neither timed
nor observed by the ledger or the profiler.
"""

import math

import torch

GradNorm = torch.Tensor | float

_NOT_CLIPPED = "gradient_clipping is 0: gradient norms are computed in warm-up steps only, to keep timed steps fast"


class GradNorms:
    """Norms of all steps, None for steps without one; keeps none in worlds without values or with a rank alone."""

    def __init__(self, clipping: float = 0.0, *, are_kept: bool = True) -> None:
        self._clipping = clipping
        self._are_kept = are_kept
        self._kind = ""
        self._norms: list[GradNorm | None] = []
        self._unknown: str | None = None

    def begin(self, kind: str) -> None:
        """Begin a step of this kind."""
        self._kind = kind
        self._norms.append(None)

    @property
    def largest(self) -> float | None:
        """Norm to clip to in this step: infinity to compute the norm without clipping, None to do neither."""
        if self._clipping:
            return self._clipping
        return math.inf if self._are_kept and self._kind == "warmup" else None

    def tell(self, norm: GradNorm) -> None:
        """Record the norm of the current step; of several updates in one step, the last.

        Tensors are read at once except in timed steps, where that would wait for the GPU.
        """
        if self._are_kept:
            self._norms[-1] = norm if self._kind == "timed" else float(norm)

    def values(self) -> list[float | None]:
        """Norms of all steps; empty if none was recorded. Reads tensors of timed steps, so call it after them."""
        values = [None if norm is None else float(norm) for norm in self._norms]
        return [] if all(value is None for value in values) else values

    def disable(self, reason: str) -> None:
        """Record why there will be no norms."""
        self._unknown = reason

    def notes(self) -> list[str]:
        """Notes on missing norms, with the reason."""
        if not self._are_kept:
            return []
        if self._unknown is not None:
            return [f"gradient norm unknown: {self._unknown}"]
        return [_NOT_CLIPPED] if not self._clipping and None in self.values() else []
