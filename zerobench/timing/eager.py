"""How many bytes the blocks of transformers move where nothing fuses their element-wise kernels.

Each operation reads its arguments and writes its results once. Counted so, a GPT block whose norms and activation are
one kernel each, as in the fitted runs, moves 10 h + 2 f words a token forward and 23 h + 4 f backward (h the hidden
size, f the MLP's width): 18 h and 39 h, and the rates' words are within a third of that. What is written out moves
more: Llama's norms cast to fp32, square, average and scale, its queries and keys are rotated by several kernels each,
and so is GPT-2's activation.
"""

from __future__ import annotations

from typing import NamedTuple

from zerobench.spec.architecture import complete
from zerobench.spec.model import ModelSpec
from zerobench.timing.passes import Decoder, elementwise_width


class Words(NamedTuple):
    """16-bit words that a block's pass moves a token, for each unit of a width."""

    hidden: int
    heads: int
    """Of queries and keys."""
    inner: int

    def of(self, decoder: Decoder) -> float:
        """For a block of `decoder`."""
        heads = (decoder.qkv_width + decoder.attention_width) // 2
        return self.hidden * decoder.hidden + self.heads * heads + self.inner * decoder.mlp_width


class BlockWords(NamedTuple):
    """Of a block's two passes."""

    forward: Words
    backward: Words


FUSED = BlockWords(Words(10, 0, 2), Words(23, 0, 4))
"""A GPT's, norms and activation one kernel each."""
_LLAMA = BlockWords(Words(42, 10, 5), Words(107, 16, 9))
_WORDS = {"llama": _LLAMA, "mistral": _LLAMA, "gpt_neox": BlockWords(Words(19, 0, 2), Words(48, 0, 4))}
_GPT2 = {"gelu_new": BlockWords(Words(10, 0, 18), Words(23, 0, 29)), "gelu": FUSED}
"""By activation function."""


def words_of(spec: ModelSpec) -> BlockWords | None:
    """A block's of the model as transformers runs it; None where it was not counted."""
    if spec.model_type == "gpt2":
        return _GPT2.get(str(complete(spec).get("activation_function", "gelu_new")))
    return _WORDS.get(spec.model_type)


def times_as_many(spec: ModelSpec, decoder: Decoder) -> float | None:
    """Over what is counted for such a block, which is the fitted GPT's by width; None where it was not counted."""
    words = words_of(spec)
    counted = sum(each.hidden + 4 * each.inner for each in FUSED) * elementwise_width(decoder)
    return None if words is None else sum(each.of(decoder) for each in words) / counted
