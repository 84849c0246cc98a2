"""Parameter tensors of a model, in the model's own order, without building it.

Padding, buckets and the gradients at a partition's edge depend on the tensors and their order, not only on their sum. A
test compares these lists with transformers' own models, tensor by tensor.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple, Self

from zerobench.common.errors import UserError, unknown_choice
from zerobench.config.models.architecture import complete
from zerobench.config.trial.adapter import Lora, codes_bytes, quantised_bytes
from zerobench.config.trial.backward import Weight
from zerobench.config.trial.model import Component, ModelSpec


class Tensor(int):
    """Elements of a parameter tensor."""

    path: str
    """Its name; within a block, relative to the block."""
    component: Component

    def __new__(cls, size: int, path: str, component: Component) -> Self:
        tensor = super().__new__(cls, size)
        tensor.path, tensor.component = path, component
        return tensor


class Matrix(Tensor):
    """A weight that every token is multiplied with; other tensors are added, or looked up."""

    name: str
    """Last part of its module's name, by which an adapter's targets select it; the head's is never selected."""
    inputs: int
    outputs: int

    def __new__(cls, inputs: int, outputs: int, module: str, component: Component) -> Self:
        """Weight that maps `inputs` numbers to `outputs`."""
        matrix = super().__new__(cls, inputs * outputs, f"{module}.weight", component)
        matrix.name, matrix.inputs, matrix.outputs = module.rpartition(".")[2], inputs, outputs
        return matrix


Sizes = list[Tensor]


class Layout(NamedTuple):
    """Tensors of a model before, within and after its blocks."""

    before: Sizes
    blocks: str
    """Common prefix of the names of blocks, without their numbers."""
    layer: Sizes
    num_layers: int
    after: Sizes

    @property
    def all(self) -> Sizes:
        """Tensors before, within and after the blocks."""
        return [*self.before, *(self.layer * self.num_layers), *self.after]


class Matrices(NamedTuple):
    """Elements of the weights that every token is multiplied with."""

    block: tuple[Matrix, ...]
    """Weights of one block, in order of use."""
    num_blocks: int
    outside: int
    """The head, which may be the token embedding, and projections next to it."""


def parameter_tensors(spec: ModelSpec) -> tuple[int, ...]:
    """Elements of each parameter tensor of the causal language model of `spec`, in the order of `parameters()`.

    A tied head is listed once, as the embedding. Raises UserError for an architecture without a closed form.
    """
    return tuple(_layout(spec).all)


class Weights(NamedTuple):
    """Parameters of a model with their names, in the model's own order."""

    before: tuple[Weight, ...]
    blocks: tuple[tuple[Weight, ...], ...]
    after: tuple[Weight, ...]

    @property
    def all(self) -> tuple[Weight, ...]:
        """Weights before, within and after the blocks."""
        return (*self.before, *chain.from_iterable(self.blocks), *self.after)

    @property
    def first_passed(self) -> int:
        """First block that a backward pass reaches: nothing before it is trained."""
        trained = [any(weight.is_trained for weight in block) for block in self.blocks]
        if any(weight.is_trained for weight in self.before):
            return 0
        return trained.index(True) if True in trained else len(self.blocks)


def named_weights(spec: ModelSpec, frozen: str | None = None) -> Weights:
    """Parameters of `parameter_tensors` with names; those whose name matches the pattern `frozen` are not trained."""
    layout = _layout(spec)

    def named(sizes: Sizes, prefix: str = "") -> tuple[Weight, ...]:
        names = [prefix + size.path for size in sizes]
        return tuple(
            Weight(name, size, frozen is None or not re.search(frozen, name), size.component)
            for name, size in zip(names, sizes, strict=True)
        )

    blocks = tuple(named(layout.layer, f"{layout.blocks}.{block}.") for block in range(layout.num_layers))
    return Weights(named(layout.before), blocks, named(layout.after))


def block_tensors(spec: ModelSpec) -> tuple[tuple[int, ...], int]:
    """Elements of each parameter tensor of one block, and the number of blocks. Raises as `parameter_tensors` does."""
    layout = _layout(spec)
    return tuple(layout.layer), layout.num_layers


def stage_tensors(spec: ModelSpec, blocks: range) -> tuple[int, ...]:
    """Elements of each parameter tensor of the pipeline stage with `blocks` of the model, in its order.

    The first stage has the embeddings, the last one the final norm and the head, which may be a second copy of the
    embedding. Raises as `parameter_tensors` does.
    """
    layout = _layout(spec)
    is_first, is_last = blocks.start == 0, blocks.stop == layout.num_layers
    shared = layout.before[:1] if is_last and not is_first and complete(spec)["tie_word_embeddings"] else []
    return (*(layout.before if is_first else shared), *(layout.layer * len(blocks)), *(layout.after if is_last else ()))


def lists_tensors(spec: ModelSpec) -> bool:
    """Return whether each tensor is known, not only their sum: whether `parameter_tensors` does not raise."""
    return spec.model_type not in _COUNTED_ALONE and layout_of(spec) is not None


def has_separate_queries(spec: ModelSpec) -> bool:
    """Return whether queries, keys and values each have a matrix of their own."""
    layout = layout_of(spec)
    named = () if layout is None or spec.model_type == "phi3" else layout.layer
    return any(isinstance(size, Matrix) and size.name == "q_proj" for size in named)


def blocks_are_linear(spec: ModelSpec) -> bool:
    """Return whether the matrices of its blocks are nn.Linear, which DeepSpeed can replace: GPT-2's are Conv1D."""
    return spec.model_type != "gpt2"


def matrices(spec: ModelSpec) -> Matrices:
    """Weights that every token of the model is multiplied with. Raises as `parameter_tensors` does."""
    layout = _layout(spec)
    outside = [size for size in (*layout.before, *layout.after) if isinstance(size, Matrix)]
    tied = layout.before[0] if complete(spec)["tie_word_embeddings"] else 0
    block = tuple(size for size in layout.layer if isinstance(size, Matrix))
    return Matrices(block, layout.num_layers, sum(outside) + tied)


def adapted(spec: ModelSpec, lora: Lora) -> tuple[Matrix, ...]:
    """Matrices of one block, and before the first, that have adapters of `lora`.

    Raises UserError if it names one that the model does not have, and as `parameter_tensors` does.
    """
    layout = _layout(spec)
    matrices_before_head = [size for size in (*layout.before, *layout.layer) if isinstance(size, Matrix)]
    if missing := set(lora.targets) - {matrix.name for matrix in matrices_before_head}:
        raise unknown_choice("adapter", " or ".join(sorted(missing)), [matrix.name for matrix in matrices_before_head])
    return tuple(matrix for matrix in matrices_before_head if not lora.targets or matrix.name in lora.targets)


def adapter_tensors(spec: ModelSpec, lora: Lora) -> tuple[int, ...]:
    """Elements of each adapter's two matrices, in the order of `parameters()`. Raises as `adapted` does."""
    layout, names = _layout(spec), {matrix.name for matrix in adapted(spec, lora)}
    matrices_before_head = [
        size for size in (*layout.before, *layout.layer * layout.num_layers) if isinstance(size, Matrix)
    ]
    targets = [matrix for matrix in matrices_before_head if matrix.name in names]
    return tuple(lora.rank * width for matrix in targets for width in (matrix.inputs, matrix.outputs))


def frozen_tensors(spec: ModelSpec, base: str | None, element: int) -> tuple[tuple[int, ...], int]:
    """Elements of `element` bytes that store each parameter tensor next to adapters (codes, if quantised), and total
    bytes of the scales. Raises as `parameter_tensors` does.
    """
    layout = _layout(spec)
    sizes = [*layout.before, *layout.layer * layout.num_layers]
    coded = [size for size in sizes if base is not None and isinstance(size, Matrix)]
    stored = [
        codes_bytes(base, size) // element if base is not None and isinstance(size, Matrix) else int(size)
        for size in sizes
    ]
    scales = sum(quantised_bytes(str(base), matrix.outputs, matrix.inputs)[1] for matrix in coded)
    return (*stored, *layout.after), scales


def quantised_elements(spec: ModelSpec, base: str | None) -> int:
    """Elements stored as codes if every frozen matrix but the head is quantised. Raises as `parameter_tensors`."""
    layout = _layout(spec)
    inside = sum(size for size in layout.layer if isinstance(size, Matrix)) * layout.num_layers
    return 0 if base is None else inside + sum(size for size in layout.before if isinstance(size, Matrix))


def layout_of(spec: ModelSpec) -> Layout | None:
    """Tensors as transformers 5 builds them; correct only in sum for `_COUNTED_ALONE`. None without a closed form."""
    made, config = _LAYOUTS.get(spec.model_type), complete(spec)
    # A GPT-2 with cross attention is a decoder for another model's encoder, and none of ours.
    return None if made is None or config.get("add_cross_attention") else made(config)


def _layout(spec: ModelSpec) -> Layout:
    layout = None if spec.model_type in _COUNTED_ALONE else layout_of(spec)
    if layout is None:
        known = ", ".join(sorted(set(_LAYOUTS) - _COUNTED_ALONE))
        raise UserError(
            f"model: {spec.name!r} ({spec.model_type}) has no closed form of its parameters; choices: evidence "
            f"simulated, or a model of type {known}"
        )
    return layout


def _linear(inputs: int, outputs: int, module: str, component: Component, *, bias: bool) -> Sizes:
    matrix = Matrix(inputs, outputs, module, component)
    return [matrix, Tensor(outputs, f"{module}.bias", component)] if bias else [matrix]


def _norm(width: int, module: str, *, bias: bool = True) -> Sizes:
    return [Tensor(width, f"{module}.{part}", Component.NORMS) for part in ("weight", "bias")[: 1 + bias]]


def _tokens(config: dict[str, Any], width: int, module: str) -> Tensor:
    return Tensor(config["vocab_size"] * width, f"{module}.weight", Component.TOKEN_EMBEDDINGS)


def _positions(rows: int, width: int, module: str) -> Tensor:
    return Tensor(rows * width, f"{module}.weight", Component.POSITIONAL_EMBEDDINGS)


def _head(config: dict[str, Any], width: int) -> Sizes:
    return [] if config["tie_word_embeddings"] else [Matrix(width, config["vocab_size"], "lm_head", Component.HEAD)]


def _gpt2(config: dict[str, Any]) -> Layout:
    """transformers.models.gpt2.modeling_gpt2: GPT2Model, GPT2Block."""
    hidden = config["n_embd"]
    inner = config["n_inner"] or 4 * hidden
    attention = _linear(hidden, 3 * hidden, "attn.c_attn", Component.ATTENTION, bias=True)
    attention += _linear(hidden, hidden, "attn.c_proj", Component.ATTENTION, bias=True)
    mlp = _linear(hidden, inner, "mlp.c_fc", Component.MLP, bias=True)
    mlp += _linear(inner, hidden, "mlp.c_proj", Component.MLP, bias=True)
    return Layout(
        before=[
            _tokens(config, hidden, "transformer.wte"),
            _positions(config["n_positions"], hidden, "transformer.wpe"),
        ],
        blocks="transformer.h",
        layer=_norm(hidden, "ln_1") + attention + _norm(hidden, "ln_2") + mlp,
        num_layers=config["n_layer"],
        after=_norm(hidden, "transformer.ln_f") + _head(config, hidden),
    )


def _llama_like(config: dict[str, Any]) -> Layout:
    """transformers.models.llama.modeling_llama (LlamaDecoderLayer) and models derived from it."""
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    model_type = config["model_type"]
    head_dim = config.get("head_dim") or hidden // heads
    queries, keys = heads * head_dim, (config["num_key_value_heads"] or heads) * head_dim
    bias = bool(config.get("attention_bias")) and model_type in {"llama", "qwen3", "gemma2"}
    qkv_bias = bias or model_type == "qwen2"  # qwen2 has biases on queries, keys and values alone
    attention = _linear(hidden, queries, "self_attn.q_proj", Component.ATTENTION, bias=qkv_bias)
    attention += _linear(hidden, keys, "self_attn.k_proj", Component.ATTENTION, bias=qkv_bias)
    attention += _linear(hidden, keys, "self_attn.v_proj", Component.ATTENTION, bias=qkv_bias)
    attention += _linear(queries, hidden, "self_attn.o_proj", Component.ATTENTION, bias=bias)
    if model_type == "qwen3":
        attention += [norm for name in "qk" for norm in _norm(head_dim, f"self_attn.{name}_norm", bias=False)]
    mlp_bias = bool(config.get("mlp_bias")) and model_type == "llama"
    mlp = _linear(hidden, inner, "mlp.gate_proj", Component.MLP, bias=mlp_bias)
    mlp += _linear(hidden, inner, "mlp.up_proj", Component.MLP, bias=mlp_bias)
    mlp += _linear(inner, hidden, "mlp.down_proj", Component.MLP, bias=mlp_bias)
    if model_type == "mixtral" and (experts := config["num_local_experts"]):  # as many MLPs, the router between them
        mlp = mlp * experts + _linear(hidden, experts, "mlp.gate", Component.MLP, bias=False)
    normed = ["input", "post_attention"] + ["pre_feedforward", "post_feedforward"] * (model_type == "gemma2")
    norms = [norm for name in normed for norm in _norm(hidden, f"{name}_layernorm", bias=False)]
    return Layout(
        before=[_tokens(config, hidden, "model.embed_tokens")],
        blocks="model.layers",
        layer=[*attention, *mlp, *norms],
        num_layers=config["num_hidden_layers"],
        after=[*_norm(hidden, "model.norm", bias=False), *_head(config, hidden)],
    )


def _gpt_neox(config: dict[str, Any]) -> Layout:
    """transformers.models.gpt_neox.modeling_gpt_neox, GPTNeoXLayer."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    bias = bool(config["attention_bias"])
    attention = _linear(hidden, 3 * hidden, "attention.query_key_value", Component.ATTENTION, bias=bias)
    attention += _linear(hidden, hidden, "attention.dense", Component.ATTENTION, bias=bias)
    mlp = _linear(hidden, inner, "mlp.dense_h_to_4h", Component.MLP, bias=True)
    mlp += _linear(inner, hidden, "mlp.dense_4h_to_h", Component.MLP, bias=True)
    return Layout(
        before=[_tokens(config, hidden, "gpt_neox.embed_in")],
        blocks="gpt_neox.layers",
        layer=_norm(hidden, "input_layernorm") + _norm(hidden, "post_attention_layernorm") + attention + mlp,
        num_layers=config["num_hidden_layers"],
        after=_norm(hidden, "gpt_neox.final_layer_norm") + _head(config, hidden),
    )


def _opt(config: dict[str, Any]) -> Layout:
    """transformers.models.opt.modeling_opt: OPTDecoder, OPTDecoderLayer."""
    hidden, inner, decoder = config["hidden_size"], config["ffn_dim"], "model.decoder"
    width, bias = config["word_embed_proj_dim"] or hidden, bool(config["enable_bias"])
    has_norms = config["layer_norm_elementwise_affine"]
    has_final_norm = has_norms and config["do_layer_norm_before"] and not config["_remove_final_layer_norm"]
    attention = [
        size
        for name in ("k_proj", "v_proj", "q_proj", "out_proj")
        for size in _linear(hidden, hidden, f"self_attn.{name}", Component.ATTENTION, bias=bias)
    ]
    attention_norm, last_norm = (
        _norm(hidden, name) if has_norms else [] for name in ("self_attn_layer_norm", "final_layer_norm")
    )
    mlp = _linear(hidden, inner, "fc1", Component.MLP, bias=bias)
    mlp += _linear(inner, hidden, "fc2", Component.MLP, bias=bias)
    projections = _linear(hidden, width, f"{decoder}.project_out", Component.OTHER, bias=False)
    projections += _linear(width, hidden, f"{decoder}.project_in", Component.OTHER, bias=False)
    return Layout(
        before=[
            _tokens(config, width, f"{decoder}.embed_tokens"),
            _positions(config["max_position_embeddings"] + 2, hidden, f"{decoder}.embed_positions"),
            *(projections if width != hidden else []),
            *(_norm(hidden, f"{decoder}.final_layer_norm") if has_final_norm else []),
        ],
        blocks=f"{decoder}.layers",
        layer=[*attention, *attention_norm, *mlp, *last_norm],
        num_layers=config["num_hidden_layers"],
        after=_head(config, width),
    )


_LAYOUTS: dict[str, Callable[[dict[str, Any]], Layout]] = {
    "gpt2": _gpt2,
    **dict.fromkeys(("llama", "mistral", "mixtral", "gemma2", "phi3", "qwen2", "qwen3"), _llama_like),
    "gpt_neox": _gpt_neox,
    "opt": _opt,
}
_COUNTED_ALONE = {"mixtral", "gemma2", "phi3"}
"""Types whose tensors differ from `_llama_like` in shape or order: only their sum is correct."""
