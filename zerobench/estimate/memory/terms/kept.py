"""Tensors that autograd keeps of a forward pass of transformers' own layers, tensor by tensor, by which weights are
trained.

An operation keeps what the gradients need that are asked of it: a matrix product its input where the matrix is trained,
and the matrix alone where what it is multiplied with depends on something that is trained; attention, a norm and an
activation their tensors where either does. Before the first weight that is trained nothing is kept.

An adapter beside a matrix keeps what the matrix would, and what lies between its own two. One in fp32 beside a 16-bit
matrix keeps a copy in fp32 of what it is multiplied with, of its own though several have one input. DeepSpeed's linear
layer of stage 3 keeps its input whatever is trained (runtime/zero/linear.py, setup_context), where it keeps anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

MASK = 1
"""Bytes of an element of what was dropped (aten/src/ATen/native/cuda/Dropout.cu)."""
IsTrained = Callable[[str], bool]
"""Of a weight, by its name within the block, or in the model outside of blocks."""


@dataclass(frozen=True)
class Shape:
    """Dimensions that the formulas read of a trial: one micro batch on one rank."""

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
    drops_hidden: bool = False
    """Whether what attention and MLP of a block give is dropped from, of which a mask is kept; and below the same of
    the embeddings' sum, and of scores.
    """
    drops_embeddings: bool = False
    drops_scores: bool = False


@dataclass(frozen=True)
class KeptBytes:
    """Bytes of a token, or of what lies outside the layers in all."""

    nbytes: int
    depends: bool
    """Whether what comes out depends on something that is trained."""
    rotates: bool = False
    """Whether queries or keys do."""


@dataclass(frozen=True)
class TrainedWeights:
    """Trained weights, and adapters beside frozen ones."""

    weights: IsTrained
    beside: Callable[[str], int] = lambda _: 0
    """Elements of a token that the adapter of a module keeps between its matrices; 0 without one."""
    keeps_inputs: bool = False
    """Whether linear layers keep their inputs though they are frozen."""
    widened: bool = False
    """Whether adapters are in fp32 beside a 16-bit model."""

    def module(self, name: str) -> bool:
        """Return whether a module's weight is trained, or has an adapter."""
        return self.weights(f"{name}.weight") or self.beside(name) > 0

    def any(self, names: Sequence[str]) -> bool:
        """Return whether weight, bias or adapter of any of the modules is trained."""
        return any(self.module(name) or self.weights(f"{name}.bias") for name in names)

    def needs_input(self, names: Sequence[str], *, depends: bool) -> bool:
        """Return whether the common input of the modules is kept, which depends on something that is trained or not."""
        is_trained = any(self.weights(f"{name}.weight") if self.widened else self.module(name) for name in names)
        return is_trained or (self.keeps_inputs and (depends or self.any(names)))

    def by_adapters(self, names: Sequence[str], width: int, element: int) -> int:
        """Bytes of a token that their adapters keep beside an input of this width, in elements of so many bytes."""
        ranks = [rank for name in names if (rank := self.beside(name))]
        return 4 * (sum(ranks) + width * len(ranks)) if self.widened else element * sum(ranks)


def llama_layer(shape: Shape, trained: TrainedWeights, *, depends: bool = True, norms_heads: bool = False) -> KeptBytes:
    """LlamaDecoderLayer: two norms, rotary attention, gated MLP (gate, its activation, up, their product); a token's
    bytes. `depends`: whether its input does; `norms_heads`: whether queries and keys are normed, as Qwen3's are.
    """
    e, f = shape.element, shape.intermediate_size
    kept, normed = _rms_norm(shape, trained, "input_layernorm", depends=depends)
    parts = [f"self_attn.{name}_proj" for name in "qkv"]
    kept += e * shape.hidden_size * trained.needs_input(parts, depends=normed)
    kept += trained.by_adapters(parts, shape.hidden_size, e)
    attended = [normed or trained.any([part]) for part in parts]
    for i, heads in enumerate((shape.num_heads, shape.num_kv_heads) if norms_heads else ()):
        norm = f"self_attn.{'qk'[i]}_norm"
        more, attended[i] = _rms_norm(shape, trained, norm, depends=attended[i], width=shape.head_dim)
        kept += heads * more
    kept += _attention(shape, trained, "self_attn.o_proj", shape.num_kv_heads, attended, upcast=True)
    depends = depends or any(attended) or trained.any(["self_attn.o_proj"])
    more, normed = _rms_norm(shape, trained, "post_attention_layernorm", depends=depends)
    gates, down = ["mlp.gate_proj", "mlp.up_proj"], ["mlp.down_proj"]
    kept += more + e * shape.hidden_size * trained.needs_input(gates, depends=normed)
    kept += trained.by_adapters(gates, shape.hidden_size, e)
    gate, up = (normed or trained.any([name]) for name in gates)
    product = trained.needs_input(down, depends=gate or up)
    kept += e * f * (gate + up + gate + product) + trained.by_adapters(down, f, e)
    return KeptBytes(kept, depends or gate or up or trained.any(down), any(attended[:2]))


def llama_outside(shape: Shape, trained: TrainedWeights, *, depends: bool = True, rotates: bool = True) -> int:
    """The last norm, what the head is multiplied with, and rotary tables, which queries and keys keep; bytes in all."""
    kept, normed = _rms_norm(shape, trained, "model.norm", depends=depends)
    kept += shape.element * shape.hidden_size * trained.needs_input(["lm_head"], depends=normed)
    rotary = 2 * shape.element * shape.sequence_length * shape.head_dim
    return shape.tokens * kept + rotary * rotates


def _rms_norm(
    shape: Shape, trained: TrainedWeights, name: str, *, depends: bool, width: int | None = None
) -> tuple[int, bool]:
    """LlamaRMSNorm, of the hidden size or another width: its input and 1 / rms in fp32, and what its gain is multiplied
    with; whether what it gives, which others keep, depends on something that is trained.
    """
    gain, width = trained.module(name), width or shape.hidden_size
    return (4 * width + 4) * depends + shape.element * width * gain, depends or gain


def gpt2_layer(shape: Shape, trained: TrainedWeights, *, depends: bool = True) -> KeptBytes:
    """GPT2Block: two norms, attention, and an activation written out (input, tanh, 1 + tanh, half, product)."""
    e, f = shape.element, shape.intermediate_size
    kept, depends_in = 0, depends
    for norm, into in (("ln_1", "attn.c_attn"), ("ln_2", "mlp.c_fc")):
        more, normed = _layer_norm(shape, trained, norm, depends=depends)
        kept += more + e * shape.hidden_size * trained.needs_input([into], depends=normed)
        kept += trained.by_adapters([into], shape.hidden_size, e)
        made = normed or trained.any([into])
        if norm == "ln_1":
            kept += _attention(shape, trained, "attn.c_proj", shape.num_heads, [made] * 3, upcast=False)
            added = made or trained.any(["attn.c_proj"])
            kept += MASK * shape.hidden_size * (shape.drops_hidden and added)
            depends = depends_in or added
    product = trained.needs_input(["mlp.c_proj"], depends=made)
    kept += e * f * (4 * made + product) + trained.by_adapters(["mlp.c_proj"], f, e)
    added = made or trained.any(["mlp.c_proj"])
    kept += MASK * shape.hidden_size * (shape.drops_hidden and added)
    return KeptBytes(kept, depends or added)


def gpt2_outside(shape: Shape, trained: TrainedWeights, *, depends: bool = True, rotates: bool = False) -> int:  # noqa: ARG001 -- one call for both
    """The last norm, and what the head is multiplied with; a tied head is trained where the embedding is."""
    kept, normed = _layer_norm(shape, trained, "transformer.ln_f", depends=depends)
    head = trained.needs_input(["lm_head"], depends=normed)
    return shape.tokens * (kept + shape.element * shape.hidden_size * head)


def _layer_norm(shape: Shape, trained: TrainedWeights, name: str, *, depends: bool) -> tuple[int, bool]:
    """torch.nn.LayerNorm: input, mean and 1 / deviation (in fp32 on GPUs, in the input's type on CPUs)."""
    has_any = depends or trained.any([name])
    return (shape.element * shape.hidden_size + 2 * 4) * has_any, has_any


def _attention(
    shape: Shape, trained: TrainedWeights, output: str, kv_heads: int, depends: Sequence[bool], *, upcast: bool
) -> int:
    """Queries, keys, values and output; flash kernels keep the scores' fp32 log-sum-exp, eager attention the scores.

    Eager attention repeats keys and values for every head, Llama's takes the softmax in fp32 and casts it, and its
    output is another tensor than it keeps, made to be multiplied with the matrix. `depends`: whether queries, keys and
    values do; where none does, the output is all that is kept, for the matrix, if at all.
    """
    e, width = shape.element, shape.num_heads * shape.head_dim
    beside = trained.by_adapters([output], width, e)
    if not any(depends):
        return beside + e * width * trained.needs_input([output], depends=False)
    if not shape.eager:
        kept = 2 * width + 2 * kv_heads * shape.head_dim
        return beside + e * kept + 4 * shape.num_heads
    queries, keys, values = depends
    scores = queries or keys
    tensors = keys + queries + scores + trained.needs_input([output], depends=True)
    is_cast = upcast and e == 2
    score = (4 * scores + e * values) if is_cast else e
    if shape.drops_scores and scores:
        score += MASK + (0 if is_cast else e)  # what values are multiplied with is another tensor than the softmax
    return beside + e * width * tensors + score * shape.num_heads * shape.sequence_length
