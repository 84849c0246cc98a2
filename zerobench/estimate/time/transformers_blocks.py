"""What transformers runs in place of the fitted runs' blocks, whose norms and activation are one kernel each.

Its element-wise work is counted: each operation reads its arguments and writes its results once. Counted so, the fitted
runs' blocks move 10 h + 2 f words a token forward and 23 h + 4 f backward (h the hidden size, f the MLP's width), and
the rates' words are within a third of that. What is written out moves more: Llama's norms cast to fp32, square, average
and scale, its queries and keys are rotated by several kernels each, and so is GPT-2's activation.

Products and attention have become faster than in the fitted runs (2023), kernels of eager blocks reach less of the
memory's bandwidth, and the loss is in fp32: rates.yaml, `today`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from zerobench.config.models.architecture import complete, dimensions
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import CrossEntropy
from zerobench.estimate.clock.device import Device
from zerobench.estimate.clock.kernels import WORD_BYTES
from zerobench.estimate.clock.rates import shipped_rates
from zerobench.estimate.time.passes import Decoder, elementwise_width


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
LLAMA = BlockWords(Words(42, 10, 5), Words(107, 16, 9))
NEOX = BlockWords(Words(19, 0, 2), Words(48, 0, 4))
_WORDS = {"llama": LLAMA, "mistral": LLAMA, "gpt_neox": NEOX}
_GPT2 = {"gelu_new": BlockWords(Words(10, 0, 18), Words(23, 0, 29)), "gelu": FUSED}
"""By activation function."""


def words_of(spec: ModelSpec) -> BlockWords | None:
    """A block's of the model as transformers runs it; None where it was not counted."""
    if spec.model_type == "gpt2":
        return _GPT2.get(str(complete(spec).get("activation_function", "gelu_new")))
    return _WORDS.get(spec.model_type)


def words_over_width(words: BlockWords, decoder: Decoder) -> dict[str, float]:
    """As rates have them: a token and unit of the width that elementwise work goes by."""
    return {f"{name}_words": each.of(decoder) / elementwise_width(decoder) for name, each in words._asdict().items()}


LOSS_WORDS = {CrossEntropy.FULL: 20, CrossEntropy.CHUNKED: 22, CrossEntropy.LIGER: 2, CrossEntropy.MODEL_DTYPE: 7}
"""16-bit words that a loss and its gradient move a token and word of the vocabulary."""


def as_run(
    device: Device,
    spec: ModelSpec,
    decoder: Decoder,
    positions: int,
    *,
    fuses: bool,
    alone: bool,
    loss: CrossEntropy = CrossEntropy.FULL,
) -> Device:
    """`device` with the rates of what transformers runs: `spec` in sequences of `positions`, with this `loss`, on
    a rank that is `alone` or among others.

    A block that was not counted is taken to move as much as the counted one with a gate as it has, or without; where
    torch.compile `fuses` its kernels, as much as the fitted runs' blocks. Of losses transformers' own was timed, and
    the others take what they move beside it.
    """
    today = shipped_rates().today
    kernels = today.kernels[device.kind]
    update = {"step_s": today.step_s, "micro_batch_s": 0.0, "spread": today.spread, "gemm_share": kernels.gemm_share}
    update["in_programs"] = today.alone if alone else today.among_ranks
    if not fuses:
        words = words_of(spec) or (LLAMA if decoder.is_gated else NEOX)
        update |= {name: each / today.eager_share for name, each in words_over_width(words, decoder).items()}
    if not fuses or loss is not CrossEntropy.FULL:
        update["loss_words"] = today.loss_words * LOSS_WORDS[loss] / LOSS_WORDS[CrossEntropy.FULL]
    head_dim = dimensions(spec).head_dim or 0
    nearest = min(kernels.attention, key=lambda size: abs(size - head_dim))
    for name, (share, half) in kernels.attention[nearest].items():
        update[f"attention_{name}_share"] = share * positions / (positions + half)
    sizes = (decoder.vocabulary, decoder.hidden, decoder.mlp_width, decoder.attention_width, decoder.qkv_width)
    unaligned = frozenset(size for size in sizes if size * WORD_BYTES % 16)
    return replace(device, rates=device.rates.model_copy(update=update), unaligned_sizes=unaligned)


def in_todays_loop(device: Device) -> Device:
    """`device` with the time between steps of the loop that `as_run` times, in place of the fitted programs'."""
    between = {"step_s": shipped_rates().today.step_s, "micro_batch_s": 0.0}
    return replace(device, rates=device.rates.model_copy(update=between))
