"""A global batch that grows during training, counted in tokens, as for GPT-3.

"We gradually increase the batch size linearly from a small value (32k tokens) to the full value over the first 4-12
billion tokens of training, depending on the model size" (Brown et al. 2020, arXiv 2005.14165, appendix B). In whole
increments, as Megatron-LM's `--rampup-batch-size START INCREMENT SAMPLES`, which counts samples and not tokens
(megatron/core/num_microbatches_calculator.py).
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from zerobench.config.trial.base import Spec

_Tokens = Annotated[int, Field(ge=1, le=2**53)]


class BatchRamp(Spec):
    """Growth of the global batch to the trial's own."""

    start_tokens: _Tokens
    """Tokens of the first step over all ranks."""
    increment_tokens: _Tokens | None = None
    """Tokens per increment; None: `start_tokens`."""
    over_tokens: _Tokens
    """Tokens of training after which the batch is full."""

    @property
    def increment(self) -> int:
        """Tokens per increment of the batch."""
        return self.increment_tokens or self.start_tokens

    def tokens_at(self, seen_tokens: int, full_tokens: int) -> int:
        """Tokens of the step after `seen_tokens` of training, if the full batch has `full_tokens`.

        Increments are spread evenly over the tokens of the ramp.
        """
        if seen_tokens >= self.over_tokens:
            return full_tokens
        increments = (full_tokens - self.start_tokens) // self.increment
        return self.start_tokens + seen_tokens * increments // self.over_tokens * self.increment

    def __str__(self) -> str:
        """`512+512/8192`: start, increment, and tokens of the ramp."""
        return f"{self.start_tokens}+{self.increment}/{self.over_tokens}"


class RampRequest(Spec):
    """A ramp in a sweep, for points of any batch."""

    start_tokens: _Tokens | Literal["auto"] = "auto"
    """`auto`: one micro-batch per rank."""
    increment_tokens: _Tokens | None = None
    over_tokens: _Tokens | None = None
    over_batches: _Tokens | None = None
    """In place of `over_tokens`: that many full batches."""

    @model_validator(mode="after")
    def _has_an_end(self) -> Self:
        if (self.over_tokens is None) == (self.over_batches is None):
            raise ValueError("it takes one of over_tokens, over_batches")
        return self

    def resolve(self, least_tokens: int, full_tokens: int) -> BatchRamp:
        """Ramp of a point with at least `least_tokens` per step and a full batch of `full_tokens`."""
        return BatchRamp(
            start_tokens=least_tokens if self.start_tokens == "auto" else self.start_tokens,
            increment_tokens=self.increment_tokens,
            over_tokens=self.over_tokens or (self.over_batches or 0) * full_tokens,
        )
