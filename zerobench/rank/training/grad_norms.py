"""The global norm of each step's gradients before clipping, as strategies tell it.

It sees what losses cannot: gradients that are all too large by one factor change nothing under AdamW, nor under SGD
where they are clipped. Whoever clips knows the norm anyway. Where nothing clips it is computed for its own sake, and
then in warm-up steps alone, which are neither timed nor looked at by the ledger or the profiler.
"""

import math

import torch

GradNorm = torch.Tensor | float

_NOT_CLIPPED = "gradient_clipping is 0: gradient norms are computed in warm-up steps only, to keep timed steps fast"


class GradNorms:
    """One entry for each step: the norm, or None. Where values mean nothing (a rank alone of many) none is kept."""

    def __init__(self, clipping: float = 0.0, *, are_kept: bool = True) -> None:
        self._clipping = clipping
        self._are_kept = are_kept
        self._kind = ""
        self._norms: list[GradNorm | None] = []
        self._unknown: str | None = None

    def begin(self, kind: str) -> None:
        """A step of this kind begins."""
        self._kind = kind
        self._norms.append(None)

    @property
    def largest(self) -> float | None:
        """What the norm is to be clipped to in this step: infinity where it is to be computed and nothing changed; None
        where nothing asks for it.
        """
        if self._clipping:
            return self._clipping
        return math.inf if self._are_kept and self._kind == "warmup" else None

    def tell(self, norm: GradNorm) -> None:
        """The norm of the step under way; of several updates in one step the last.

        Read at once but in timed steps, where reading a tensor would wait for the GPU, and where nobody counts bytes.
        """
        if self._are_kept:
            self._norms[-1] = norm if self._kind == "timed" else float(norm)

    def values(self) -> list[float | None]:
        """Of all steps; empty where none was told. Reads what timed steps left, so after them only."""
        values = [None if norm is None else float(norm) for norm in self._norms]
        return [] if all(value is None for value in values) else values

    def cannot_be_told(self, reason: str) -> None:
        """There will be none, and why."""
        self._unknown = reason

    def notes(self) -> list[str]:
        """Why steps have no norm, where that is known."""
        if not self._are_kept:
            return []
        if self._unknown is not None:
            return [f"gradient norm unknown: {self._unknown}"]
        return [_NOT_CLIPPED] if not self._clipping and None in self.values() else []
