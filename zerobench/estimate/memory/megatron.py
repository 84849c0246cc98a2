"""Tensor parallelism's parts of a model, in closed form.

Source: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", arXiv
1909.08053, section 3. With t ranks, b sequences of s tokens, hidden size h and vocabulary V:

- matrices of attention (by heads) and MLP (by inner width), embedding and head are divided by t, and with them their
  gradients and optimizer states; norms, and biases of matrices cut by rows, are whole on every rank;
- of activations, what lies between a first and a last matrix is divided (heads, inner width, logits); what enters a
  block is whole. Collectives: config/derived/megatron.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain

from zerobench.common.vocabulary import Category, StepKind
from zerobench.config.models.architecture import complete
from zerobench.config.models.tensors import block_tensors, parameter_tensors
from zerobench.config.trial.model import ModelSpec
from zerobench.estimate.memory.deepspeed.setting import Instants, Setting
from zerobench.estimate.memory.deepspeed.stage_0 import plain_device
from zerobench.estimate.memory.terms.activations import Logits
from zerobench.estimate.memory.terms.kept import Shape
from zerobench.estimate.memory.terms.terms import add
from zerobench.estimate.memory.torch_strategies import drawing


@dataclass(frozen=True)
class Parts:
    """One rank's part of a model of Llama's shape."""

    parts: int
    rank: int
    vocab_size: int

    @property
    def vocabulary(self) -> int:
        """Rows of the head on this rank, as torch.chunk cuts them."""
        each = -(-self.vocab_size // self.parts)
        return max(0, min(each, self.vocab_size - self.rank * each))

    def shape(self, whole: Shape) -> Shape:
        """The shape that this rank's activations have; the hidden size is whole between the blocks."""
        return replace(
            whole,
            num_heads=whole.num_heads // self.parts,
            num_kv_heads=whole.num_kv_heads // self.parts,
            intermediate_size=whole.intermediate_size // self.parts,
            vocab_size=self.vocabulary,
        )


def own_tensors(spec: ModelSpec, part: Parts) -> tuple[int, ...]:
    """Elements of each parameter tensor on one rank, in the order of `parameter_tensors`."""
    tensors, (layer, num_layers) = parameter_tensors(spec), block_tensors(spec)
    own_layer = [size // part.parts if cut else size for size, cut in zip(layer, _cut(spec), strict=True)]
    norm, head = tensors[-2:]
    own_head = head // part.vocab_size * part.vocabulary
    return (tensors[0] // part.parts, *chain.from_iterable([own_layer] * num_layers), norm, own_head)


def _cut(spec: ModelSpec) -> list[bool]:
    """Return for each tensor of a layer of Llama's whether it is cut: all but the norms and the biases of row-cut
    matrices.
    """
    config = complete(spec)
    bias = bool(config.get("attention_bias")) and spec.model_type == "llama"
    mlp_bias = bool(config.get("mlp_bias")) and spec.model_type == "llama"
    by_columns = {False: [True], True: [True, True]}
    by_rows = {False: [True], True: [True, False]}
    attention = by_columns[bias or spec.model_type == "qwen2"] * 3 + by_rows[bias]
    return [*attention, *(by_columns[mlp_bias] * 2), *by_rows[mlp_bias], False, False]


def tensor_device(setting: Setting, step: StepKind, largest_tensor: int) -> Instants:
    """As the plain loop over this rank's parts, after a start in which one whole tensor at a time is drawn.

    `largest_tensor` is the largest of the whole model in elements, `setting` that of the parts.
    """
    instants = plain_device(setting, step)
    parts = setting.share(Category.PARAMETERS, setting.case.element, setting.num_params)
    return replace(instants, init=(add(parts, drawing(setting.case.element, largest_tensor)), *instants.init))


def cut_logits_bytes(tokens: int, vocabulary: int, element: int) -> Logits:
    """Logits and loss under `loss_parallel` (torch/distributed/tensor/parallel/loss.py), `vocabulary` of this rank.

    Written out in steps, so one fp32 copy more than torch's own cross entropy needs, forward (logits less their maximum
    beside the log-probabilities) and backward (the one-hot gradient, the exponentials, their sum).
    """
    entries, labels = tokens * vocabulary, 8 * tokens
    forward = (12 if element == 4 else element + 12) * entries
    return Logits(4 * entries + labels, forward + labels, 16 * entries + labels, element * entries)
