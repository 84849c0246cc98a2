"""Bytes that a forward pass leaves for the backward pass, in closed form: activations, logits and loss.

Two kinds of formula. The published ones, for a GPT layer with dropout and 16-bit activations: Korthikanti et al.,
"Reducing Activation Recomputation in Large Transformer Models", arXiv 2205.05198, section 4.1 (equation 1) and 5, and
Megatron-LM's estimator for other widths of the MLP. And the same tally, tensor by tensor, of the layers that
transformers 5 builds, which cast, normalise and activate in more steps than the paper's: Llama's RMS norm keeps its
input in fp32, GPT-2's activation function keeps five tensors. A test holds the second kind against what autograd saves.

Symbols: s tokens of a sequence, b sequences, h hidden size, a heads of size d, k key and value heads, f width of the
MLP, V vocabulary, L layers, e bytes of an element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from zerobench.ds_config import replaces_linear
from zerobench.errors import UserError
from zerobench.spec.adapter import lora_of
from zerobench.spec.architecture import dimensions
from zerobench.spec.recomputation import OPERATIONS, blocks_after_the_last, recomputed_blocks
from zerobench.spec.tensors import adapted
from zerobench.spec.trial import Attention, CrossEntropy, Precision, TrialSpec

PUBLISHED = "Korthikanti et al. 2022 (arXiv 2205.05198), for a GPT layer with dropout"
TALLY = "tally of the tensors that autograd saves in transformers' own layers"


@dataclass(frozen=True)
class Shape:
    """What the formulas read of a trial: one micro batch on one rank."""

    tokens: int
    """s b."""
    sequence_length: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    num_layers: int
    element: int
    """Bytes of an element."""
    eager: bool
    """Whether attention keeps its s x s scores."""


@dataclass(frozen=True)
class Activations:
    """Bytes on one rank for one micro batch."""

    per_layer_bytes: int
    """Of one layer, where nothing is recomputed."""
    checkpoint_bytes: int
    """Of one layer that is recomputed: its input, and what is kept beside it by operation."""
    outside_layers_bytes: int
    """Rotary tables, final norm and the head's input."""
    num_layers: int
    num_recomputed: int
    """Layers whose forward pass backward runs again."""
    freed_before: int
    """Layers that backward has passed when it runs the first of them again."""
    source: str
    """PUBLISHED or TALLY."""
    not_made_again_bytes: int = 0
    """Of what one layer keeps where nothing is recomputed, what is kept by operation."""
    spared_bytes: int = 0
    """What the first layer does not keep, before which nothing is trained."""

    @property
    def checkpoint_words(self) -> str:
        """What a layer keeps that is recomputed."""
        return "the input of a checkpointed layer" + (
            " and what it keeps by operation" if self.not_made_again_bytes else ""
        )

    @property
    def saved_bytes(self) -> int:
        """Live at the end of the forward pass."""
        kept = (self.num_layers - self.num_recomputed) * self.per_layer_bytes
        spared = self.spared_bytes if self.num_recomputed < self.num_layers else 0
        return kept + self.num_recomputed * self.checkpoint_bytes + self.outside_layers_bytes - spared

    @property
    def recomputed_bytes(self) -> int:
        """What the backward pass makes again of one layer at a time, beyond `saved_bytes`; 0 without checkpointing, and
        where backward comes to the first such layer when what others kept is gone.
        """
        again = self.per_layer_bytes - self.not_made_again_bytes if self.num_recomputed else 0
        return max(0, again - self.freed_before * self.per_layer_bytes)


@dataclass(frozen=True)
class Logits:
    """Bytes of logits and loss on one rank for one micro batch."""

    saved_bytes: int
    """Live from forward to backward: fp32 log-probabilities and the shifted labels."""
    forward_peak_bytes: int
    backward_peak_bytes: int
    gradient_bytes: int
    """The logits' gradient in the model's type, while the head's is computed from it."""
    head_gradient_bytes: int = 0
    """The head's gradient where forward computes it."""
    input_gradient_bytes: int = 0
    """The gradient of the head's input where forward computes it: beside that input, whose place it then takes."""


def flash_layer_bytes(tokens: int, hidden_size: int) -> int:
    """One GPT layer, 34 s b h: selective recomputation, or attention that never keeps its scores (section 5)."""
    return 34 * tokens * hidden_size


def recomputed_layer_bytes(tokens: int, hidden_size: int, element: int = 2) -> int:
    """One recomputed layer, 2 s b h in 16 bits: its input alone (section 5)."""
    return element * tokens * hidden_size


def megatron_layer_bytes(tokens: int, hidden_size: int, intermediate_size: int) -> int:
    """As `flash_layer_bytes` for any width of the MLP, s b h (18 + 4 f / h).

    Source: Megatron-LM, megatron/training/theoretical_memory_usage.py.
    """
    return tokens * (18 * hidden_size + 4 * intermediate_size)


def chunk_rows(tokens: int, hidden_size: int, vocab_size: int) -> int:
    """Tokens of a chunk whose logits are about as many as the hidden states of all tokens, a power of two.

    Source: Liger (arXiv 2410.10989, section 3.2) and torch 2.13's `aspect_ratio`
    (torch/nn/modules/linear_cross_entropy_options.py).
    """
    rows = -(-tokens // -(-vocab_size // hidden_size))
    return min(tokens, 1 << (rows - 1).bit_length())


def chunked_logits_bytes(shape: Shape) -> Logits:
    """Logits and loss a chunk at a time (zerobench.worker.cross_entropy): in fp32 and beside them in the model's type.

    From forward to backward there are no logits but the gradients of the head, V h, and of its input, s b h, which the
    head has no more need of.
    """
    e, h = shape.element, shape.hidden_size
    entries = chunk_rows(shape.tokens, h, shape.vocab_size) * shape.vocab_size
    labels = 8 * shape.tokens
    return Logits(
        saved_bytes=0,
        forward_peak_bytes=(4 if e == 4 else 4 + e) * entries + labels,
        backward_peak_bytes=0,
        gradient_bytes=0,
        head_gradient_bytes=e * shape.vocab_size * h,
        input_gradient_bytes=e * shape.tokens * h,
    )


def trial_logits(trial: TrialSpec) -> Logits:
    """What `trial` asks for. Raises UserError where the model's dimensions are not known."""
    shape = trial_shape(trial)
    if trial.cross_entropy.is_chunked:
        found = chunked_logits_bytes(shape)
        return found if trial.trains_all else replace(found, head_gradient_bytes=0)
    of_loss = shape.element if trial.cross_entropy is CrossEntropy.MODEL_DTYPE else 4
    return logits_bytes(shape.tokens, shape.vocab_size, shape.element, of_loss)


def logits_bytes(tokens: int, vocab_size: int, element: int, of_loss: int = 4) -> Logits:
    """Logits and loss as transformers 5 computes them (loss/loss_utils.py, ForCausalLMLoss), in fp32; with `of_loss`
    bytes of an element otherwise.

    Forward: logits in the model's type, their fp32 copy, fp32 log-probabilities (10 b s V in 16 bits, 8 b s V in fp32,
    where there is no copy). Kept: the log-probabilities, 4 b s V, and labels, 8 b s. Backward: beside them the
    gradients of the log-probabilities and of the fp32 logits, 12 b s V.
    """
    entries, labels = tokens * vocab_size, 8 * tokens
    forward = (0 if element == of_loss else element) + 2 * of_loss
    return Logits(
        of_loss * entries + labels, forward * entries + labels, 3 * of_loss * entries + labels, element * entries
    )


def trial_shape(trial: TrialSpec) -> Shape:
    """The shape of `trial`. Raises UserError where the model's config does not give its dimensions."""
    size = dimensions(trial.model)
    hidden, heads, vocab = size.hidden_size, size.num_heads, size.vocab_size
    if not (hidden and heads and vocab and size.num_layers and size.head_dim):
        raise UserError(
            f"model: {trial.model.name!r} does not give the dimensions that the formulas need; "
            "choices: evidence simulated, or a config with hidden size, heads, layers and vocabulary"
        )
    return Shape(
        tokens=trial.sequence_length * trial.micro_batch_size,
        sequence_length=trial.sequence_length,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=size.num_kv_heads or heads,
        head_dim=size.head_dim,
        intermediate_size=size.intermediate_size or 4 * hidden,
        vocab_size=vocab,
        num_layers=size.num_layers,
        element=4 if trial.precision is Precision.FP32 else 2,
        eager=trial.attention is Attention.EAGER,
    )


def activations(trial: TrialSpec, part: Shape | None = None) -> Activations:
    """What a forward pass of `trial` keeps: the tally for GPT-2 and Llama's kin, the published formula elsewhere.

    `part` is the shape of one rank's part where ranks divide the model.

    Raises UserError where the model's dimensions are not known.
    """
    shape = part or trial_shape(trial)
    layer, outside = _TALLIES.get(trial.model.model_type, (_published_layer, _published_outside))
    kept, not_made_again = _kept_by_operation(trial, shape)
    frozen, frozen_outside, spared = (0, 0, 0) if trial.adapter is None else _not_kept_of_frozen(trial, shape)
    return Activations(
        per_layer_bytes=layer(shape) - frozen,
        checkpoint_bytes=recomputed_layer_bytes(shape.tokens, shape.hidden_size, shape.element) + kept,
        outside_layers_bytes=outside(shape) - frozen_outside,
        num_layers=shape.num_layers,
        num_recomputed=recomputed_blocks(trial.activation_checkpointing, shape.num_layers),
        freed_before=blocks_after_the_last(trial.activation_checkpointing, shape.num_layers),
        source=TALLY if trial.model.model_type in _TALLIES else PUBLISHED,
        not_made_again_bytes=not_made_again,
        spared_bytes=spared,
    )


def knows_adapters(trial: TrialSpec) -> bool:
    """Whether it is written down what a layer with adapters keeps: of the types that are tallied, by layers."""
    return trial.model.model_type in _TALLIES and trial.activation_checkpointing != OPERATIONS


def _not_kept_of_frozen(trial: TrialSpec, shape: Shape) -> tuple[int, int, int]:
    """Bytes that a layer does not keep whose own weights are frozen, less what its adapters keep instead; that what
    lies outside the layers does not; and that the first layer does not beside, whose input has no gradient. All 0 where
    it is not known.

    A frozen matrix needs nothing but itself, its adapter what both are multiplied with; a frozen RMSNorm's gain does
    not need what it is multiplied with. DeepSpeed's linear layer of stage 3 keeps its input whatever is trained
    (runtime/zero/linear.py, setup_context). Where neither queries, keys nor values have adapters, the first layer
    keeps less than this.
    """
    kind, lora, e = trial.model.model_type, lora_of(str(trial.adapter)), shape.element
    if not knows_adapters(trial):
        return 0, 0, 0
    matrices = adapted(trial.model, lora)
    named = {matrix.name for matrix in matrices}
    keeps_head = replaces_linear(trial)
    keeps_all = keeps_head and kind != "gpt2" and lora.base is None
    h, f = shape.hidden_size, shape.intermediate_size
    inputs = (({"q_proj", "k_proj", "v_proj", "c_attn"}, h), ({"gate_proj", "up_proj", "c_fc"}, h))
    unused = sum(width for names, width in (*inputs, ({"down_proj", "c_proj"}, f)) if not (named & names or keeps_all))
    gain = 0 if kind == "gpt2" else e * h
    between = lora.rank * len(matrices)
    first = e * h + 8 if kind == "gpt2" else 4 * h + 4
    outside = gain + (0 if keeps_head else e * h)
    return shape.tokens * (e * unused + 2 * gain - e * between), shape.tokens * outside, shape.tokens * first


def _kept_by_operation(trial: TrialSpec, shape: Shape) -> tuple[int, int]:
    """Bytes of attention's results and of every second matrix product's in one layer, and of those of them that
    backward needs; 0 unless the trial keeps them.

    Llama multiplies with the matrices of q, k, v, attention's output, gate, up and down in this order, GPT-2 with those
    of q, k and v at once, attention's output, and the MLP's two. Llama's rotated queries are made of the first product
    anew, and nobody needs the last one's result.
    """
    if trial.activation_checkpointing != OPERATIONS:
        return 0, 0
    kind, width, key_width = (
        trial.model.model_type,
        shape.num_heads * shape.head_dim,
        shape.num_kv_heads * shape.head_dim,
    )
    if kind not in _TALLIES:
        raise UserError(
            f"activation_checkpointing {OPERATIONS}: no formula for a model of type {kind}; "
            f"choices: evidence simulated, or a model of type {', '.join(_TALLIES)}"
        )
    needed, others = (3 * width, 0) if kind == "gpt2" else (key_width, width + shape.hidden_size)
    needed += shape.intermediate_size
    attention = 0 if shape.eager else shape.element * width + 4 * shape.num_heads
    again = shape.tokens * (shape.element * needed + attention)
    return again + shape.tokens * shape.element * others, again


def _published_layer(shape: Shape) -> int:
    """Korthikanti's layer at any width of the MLP, its 2-byte elements scaled to `element` (masks of a byte too)."""
    scores = 5 * shape.num_heads * shape.sequence_length * shape.tokens if shape.eager else 0
    layer = megatron_layer_bytes(shape.tokens, shape.hidden_size, shape.intermediate_size) + scores
    return layer * shape.element // 2


def _published_outside(shape: Shape) -> int:
    """Input of the final norm and of the head: 4 s b h (section 4.3)."""
    return 2 * shape.element * shape.tokens * shape.hidden_size


def _llama_layer(shape: Shape) -> int:
    """LlamaDecoderLayer: two norms, rotary attention, gated MLP (gate, its activation, up, their product)."""
    mlp = 4 * shape.element * shape.tokens * shape.intermediate_size
    return 2 * _rms_norm(shape) + _attention(shape, shape.num_kv_heads) + mlp


def _llama_outside(shape: Shape) -> int:
    rotary = 2 * shape.element * shape.sequence_length * shape.head_dim
    return _rms_norm(shape) + rotary


def _rms_norm(shape: Shape) -> int:
    """LlamaRMSNorm: input in fp32, 1 / rms in fp32, normalised input, output (which the next linear layer keeps)."""
    return shape.tokens * (shape.hidden_size * (4 + 2 * shape.element) + 4)


def _gpt2_layer(shape: Shape) -> int:
    """GPT2Block: two norms, attention, and an activation written out (input, tanh, 1 + tanh, half, product)."""
    mlp = 5 * shape.element * shape.tokens * shape.intermediate_size
    return 2 * _layer_norm(shape) + _attention(shape, shape.num_heads, upcast=False) + mlp


def _layer_norm(shape: Shape) -> int:
    """torch.nn.LayerNorm: input, output, mean and 1 / deviation (in fp32 on GPUs, in the input's type on CPUs)."""
    return shape.tokens * (2 * shape.element * shape.hidden_size + 2 * 4)


def _attention(shape: Shape, kv_heads: int, *, upcast: bool = True) -> int:
    """Queries, keys, values and output; flash kernels keep the scores' fp32 log-sum-exp, eager attention the scores.

    Eager attention repeats keys and values for every head, and Llama's takes the softmax in fp32 and casts it.
    """
    e, width = shape.element, shape.num_heads * shape.head_dim
    if not shape.eager:
        kept = 2 * width + 2 * kv_heads * shape.head_dim
        return shape.tokens * (e * kept + 4 * shape.num_heads)
    score = 4 + e if upcast and e == 2 else e
    return shape.tokens * (4 * e * width + score * shape.num_heads * shape.sequence_length)


_Tally = tuple[Callable[[Shape], int], Callable[[Shape], int]]
_TALLIES: dict[str, _Tally] = {
    "gpt2": (_gpt2_layer, _layer_norm),
    "llama": (_llama_layer, _llama_outside),
    "mistral": (_llama_layer, _llama_outside),
    "qwen2": (_llama_layer, _llama_outside),
}
"""By model type: bytes of one layer, and of what lies outside the layers."""
