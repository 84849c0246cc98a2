"""Bytes that a forward pass leaves for the backward pass, in closed form: activations, logits and loss.

Two kinds of formula. The published ones, for a GPT layer with dropout and 16-bit activations: Korthikanti et al.,
"Reducing Activation Recomputation in Large Transformer Models", arXiv 2205.05198, section 4.1 (equation 1) and 5, and
Megatron-LM's estimator for other widths of the MLP. And the same tally, tensor by tensor, of the layers that
transformers 5 builds (kept.py), which cast, normalise and activate in more steps than the paper's: Llama's RMS norm
keeps its input in fp32, GPT-2's activation function keeps five tensors. A test holds the second kind against what
autograd saves.

Symbols: s tokens of a sequence, b sequences, h hidden size, a heads of size d, k key and value heads, f width of the
MLP, V vocabulary, L layers, e bytes of an element.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from zerobench.common.errors import UserError
from zerobench.config.deepspeed import replaces_linear
from zerobench.config.derived.chunks import chunk_rows
from zerobench.config.models.architecture import complete, dimensions
from zerobench.config.models.tensors import adapted, blocks_are_linear, matrices, named_weights
from zerobench.config.trial.adapter import BLOCK, base_of, lora_of
from zerobench.config.trial.recomputation import OPERATIONS, is_recomputed
from zerobench.config.trial.trial import Attention, CrossEntropy, Precision, TrialSpec
from zerobench.estimate.memory.terms.kept import (
    MASK,
    IsTrained,
    KeptBytes,
    Shape,
    TrainedWeights,
    gpt2_layer,
    gpt2_outside,
    llama_layer,
    llama_outside,
)

PUBLISHED = "Korthikanti et al. 2022 (arXiv 2205.05198), for a GPT layer with dropout"
TALLY = "tally of the tensors that autograd saves in transformers' own layers"


@dataclass(frozen=True)
class Activations:
    """Bytes on one rank for one micro batch."""

    layers: tuple[int, ...]
    """Of each layer, where nothing is recomputed; 0 before all that is trained."""
    again: tuple[bool, ...]
    """Whether backward runs its forward pass again."""
    checkpoint_bytes: int
    """Of one layer that is recomputed: its input, and what is kept beside it by operation."""
    outside_layers_bytes: int
    """Rotary tables, final norm and the head's input."""
    source: str
    """PUBLISHED or TALLY."""
    not_made_again_bytes: int = 0
    """Of what one layer keeps where nothing is recomputed, what is kept by operation."""
    made_whole_bytes: int = 0
    """A frozen matrix, the largest, made whole of its codes for a product."""

    @property
    def checkpoint_words(self) -> str:
        """Words for a recomputed layer's input."""
        return "the input of a checkpointed layer" + (
            " and what it keeps by operation" if self.not_made_again_bytes else ""
        )

    def held(self, layers: int) -> Iterator[tuple[int, int, str]]:
        """Yield the number of like layers among the first `layers`, the bytes of each, and words for these."""
        each = [
            (self.checkpoint_bytes, self.checkpoint_words)
            if again and kept
            else (kept, "what a layer keeps for backward")
            for kept, again in zip(self.layers[:layers], self.again, strict=False)
        ]
        for (nbytes, words), count in Counter(each).items():
            if nbytes:
                yield count, nbytes, words

    @property
    def saved_bytes(self) -> int:
        """Live at the end of the forward pass."""
        held = sum(count * nbytes for count, nbytes, _ in self.held(len(self.layers)))
        return held + self.outside_layers_bytes

    def left_bytes(self, blocks: float) -> int:
        """Live where backward has not passed so many layers: of the one that it is in, in proportion."""
        whole = int(blocks)
        held = sum(count * nbytes for count, nbytes, _ in self.held(whole))
        if whole == blocks:
            return held
        part = int((blocks - whole) * max(0, self.layers[whole] - self.not_made_again_bytes * self.again[whole]))
        return held + part + self.checkpoint_bytes * self.again[whole]

    @property
    def recomputed_bytes(self) -> int:
        """Activations of one layer that the backward pass makes again, beyond `saved_bytes`; 0 without checkpointing,
        and where backward comes to the first such layer when what others kept is gone.
        """
        again = [at for at, is_again in enumerate(self.again) if is_again]
        if not again:
            return 0
        gone = sum(self.layers[again[-1] + 1 :])
        made = max(self.layers[at] for at in again)
        return max(0, made - self.not_made_again_bytes - gone)


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


def recomputed_layer_bytes(tokens: int, hidden_size: int, element: int = 2) -> int:
    """One recomputed layer, 2 s b h in 16 bits: its input alone (section 5)."""
    return element * tokens * hidden_size


def megatron_layer_bytes(tokens: int, hidden_size: int, intermediate_size: int) -> int:
    """One layer whose attention never keeps its scores, s b h (18 + 4 f / h): 34 s b h where the MLP is 4 h wide.

    Source: Megatron-LM, megatron/training/theoretical_memory_usage.py.
    """
    return tokens * (18 * hidden_size + 4 * intermediate_size)


def chunked_logits_bytes(shape: Shape) -> Logits:
    """Logits and loss a chunk at a time (zerobench.rank.training.cross_entropy): in fp32 and beside them in the model's
    type.

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
    """Return the logits of `trial`. Raises UserError where the model's dimensions are not known."""
    shape = trial_shape(trial)
    if trial.cross_entropy.is_chunked:
        logits = chunked_logits_bytes(shape)
        return logits if trial.trains_all else replace(logits, head_gradient_bytes=0)
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
        eager=keeps_scores(trial),
        **_dropout(trial),
    )


def _dropout(trial: TrialSpec) -> dict[str, bool]:
    """Return the fields of Shape that the model's dropout sets."""
    config = complete(trial.model)
    return {
        "drops_hidden": drops_hidden(trial),
        "drops_embeddings": bool(config.get("embd_pdrop")),
        "drops_scores": bool(config.get("attn_pdrop") or config.get("attention_dropout")),
    }


def drops_hidden(trial: TrialSpec) -> bool:
    """Return whether a block's last product is dropped from, so that backward needs to know what of."""
    return bool(complete(trial.model).get("resid_pdrop"))


def keeps_scores(trial: TrialSpec) -> bool:
    """Return whether attention is written out in products, which keep its scores: by the model, or in fp32 on a GPU by
    torch, whose memory-efficient kernel takes neither grouped heads nor heads that are no multiple of 16 bytes
    (ATen/native/transformers/cuda/sdp_utils.cpp).
    """
    if trial.attention is Attention.EAGER:
        return True
    size = dimensions(trial.model)
    has_kernel = (size.num_kv_heads or size.num_heads) == size.num_heads and (size.head_dim or 0) % 4 == 0
    is_fp32 = trial.attention is Attention.SDPA and trial.precision is Precision.FP32
    return is_fp32 and trial.prediction.gpu is not None and not has_kernel


def activations(trial: TrialSpec, part: Shape | None = None) -> Activations:
    """Return the activations that a forward pass of `trial` keeps: the tally for GPT-2 and Llama's kin, the published
    formula elsewhere.

    `part` is the shape of one rank's part where ranks divide the model.

    Raises UserError where the model's dimensions are not known.
    """
    shape = part or trial_shape(trial)
    layers, outside = _tallied(trial, shape) or (
        shape.num_layers * (_published_layer(shape),),
        _published_outside(shape),
    )
    kept, not_made_again = _kept_by_operation(trial, shape)
    return Activations(
        layers=layers,
        again=tuple(is_recomputed(trial.activation_checkpointing, layer) for layer in range(shape.num_layers)),
        checkpoint_bytes=recomputed_layer_bytes(shape.tokens, shape.hidden_size, shape.element) + kept,
        outside_layers_bytes=outside,
        source=TALLY if trial.model.model_type in _TALLIES else PUBLISHED,
        not_made_again_bytes=not_made_again,
        made_whole_bytes=_made_whole_bytes(trial, shape),
    )


def _made_whole_bytes(trial: TrialSpec, shape: Shape) -> int:
    """bitsandbytes/autograd/_functions.py, MatMul4Bit and MatMul8bitFp, with nf4's scales in fp32; the head is in no
    codes.
    """
    base = base_of(trial.adapter)
    largest = 0 if base is None else max(matrices(trial.model).block)
    return shape.element * largest + (4 * largest // BLOCK if base == "nf4" else 0)


def knows_frozen(trial: TrialSpec) -> bool:
    """Return whether it is written down what a layer keeps of which something is frozen: of the types that are tallied,
    by layers.
    """
    return trial.model.model_type in _TALLIES and trial.activation_checkpointing != OPERATIONS


def _tallied(trial: TrialSpec, shape: Shape) -> tuple[tuple[int, ...], int] | None:
    """Bytes that each layer keeps, and what lies outside of them; None of a type whose tensors nobody tallied."""
    if trial.model.model_type not in _TALLIES:
        return None
    layer, outside, blocks = _TALLIES[trial.model.model_type]
    mask = MASK * shape.tokens * shape.hidden_size * shape.drops_embeddings
    if trial.trains_all or not knows_frozen(trial):
        kept = layer(shape, _ALL).nbytes * shape.tokens
        return shape.num_layers * (kept,), outside(shape, _ALL) + mask
    depends, trained = _trained(trial)
    keeps_head = replaces_linear(trial)
    keeps_all = keeps_head and blocks_are_linear(trial.model) and base_of(trial.adapter) is None
    layers, rotates, mask = [], False, mask * depends
    for block in range(shape.num_layers):
        within = replace(trained, weights=_within(trained.weights, f"{blocks}.{block}."), keeps_inputs=keeps_all)
        block_tally = layer(shape, within, depends=depends)
        layers.append(block_tally.nbytes * shape.tokens)
        depends, rotates = block_tally.depends, rotates or block_tally.rotates
    beyond = replace(trained, keeps_inputs=keeps_head, beside=_NO_ADAPTER)
    return tuple(layers), outside(shape, beyond, depends=depends, rotates=rotates) + mask


def _trained(trial: TrialSpec) -> tuple[bool, TrainedWeights]:
    """Return whether what the blocks are given depends on something that is trained, and what is."""
    if trial.adapter is not None:
        lora = lora_of(trial.adapter)
        between = {matrix.name: lora.rank for matrix in adapted(trial.model, lora)}
        return trial.passes_all, TrainedWeights(
            lambda _: False,
            lambda module: between.get(module.rpartition(".")[2], 0),
            widened=trial.widens_adapters,
        )
    own = named_weights(trial.model, trial.frozen).all
    weights = {weight.name: weight.is_trained for weight in own}
    tables = [weight.is_trained for weight in own if weight.component.is_looked_up]
    if tables and "lm_head.weight" not in weights:
        weights["lm_head.weight"] = tables[0]
    return trial.passes_all or any(tables), TrainedWeights(lambda name: weights.get(name, False))


def _within(weights: IsTrained, block: str) -> IsTrained:
    return lambda name: weights(block + name)


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


_NO_ADAPTER: Callable[[str], int] = lambda _: 0  # noqa: E731
_ALL = TrainedWeights(lambda _: True)

_TALLIES: dict[str, tuple[Callable[..., KeptBytes], Callable[..., int], str]] = {
    "gpt2": (gpt2_layer, gpt2_outside, "transformer.h"),
    "llama": (llama_layer, llama_outside, "model.layers"),
    "mistral": (llama_layer, llama_outside, "model.layers"),
    "qwen2": (llama_layer, llama_outside, "model.layers"),
    "qwen3": (partial(llama_layer, norms_heads=True), llama_outside, "model.layers"),
}
"""By model type: what one layer keeps, and what lies outside the layers; what the names of its blocks begin with."""
