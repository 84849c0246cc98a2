"""A causal language model divided into the stages of a pipeline, each a module that a rank can hold by itself.

A stage is transformers' own model in which modules of other stages (blocks, final norm) are replaced with pass-through
modules. Its forward pass is transformers', so it computes the same as the whole model (masks, positions), and its
parameters keep the names by which their weights are drawn. The whole model is created without memory, which only the
modules of the stage get: no rank ever holds more than its stage.

The first stage has the embeddings, the last one the final norm and the head. If head and embedding are tied, both hold
the tensor: the sum of their two gradients is the gradient of the whole model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from zerobench.config.derived.pipeline import divide_blocks
from zerobench.rank.ledger.engine_config import count_parameters_built
from zerobench.rank.strategies.base import Job
from zerobench.rank.training.model import DTYPES, give_memory
from zerobench.records.records import ParameterTensor


@dataclass(frozen=True)
class _Names:
    """Names of the pieces of a transformers model, within its base model."""

    embedding: str
    blocks: str
    norm: str
    positions: str | None = None


_NAMES = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), _Names("embed_tokens", "layers", "norm")),
    "gpt2": _Names("wte", "h", "ln_f", "wpe"),
    "gpt_neox": _Names("embed_in", "layers", "final_layer_norm"),
}
"""By model type; zerobench.config.derived.pipeline refuses others."""


class Stage(torch.nn.Module):
    """One stage: tokens or hidden states in, hidden states or logits out.

    `model` is the remaining part of the transformers model; its parameters have the names of the whole model.
    """

    def __init__(self, model: Any, index: int, division: Sequence[range]) -> None:
        """Reduce `model` (on the meta device) to stage `index` of the `division`."""
        super().__init__()
        self.index, self.division = index, tuple(division)
        self.is_first, self.is_last = index == 0, index == len(division) - 1
        self.whole_parameters: ParameterTensor = count_parameters_built(model)
        """Counts of the whole model."""
        self.model = model
        self.is_tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
        self._take_out(_NAMES[model.config.model_type])

    def _take_out(self, names: _Names) -> None:
        base = self.model.base_model
        row = getattr(base, names.blocks)
        for place in range(len(row)):
            if place not in self.division[self.index]:
                row[place] = _PassThroughModule()
        if not self.is_first:
            if not (self.is_last and self.is_tied):
                setattr(base, names.embedding, _PassThroughModule())
            if names.positions is not None:
                setattr(base, names.positions, _NoPositions())
        if not self.is_last:
            setattr(base, names.norm, _PassThroughModule())
            self.model.set_output_embeddings(_PassThroughModule())

    def forward(self, received: torch.Tensor) -> torch.Tensor:
        """Run the stage on tokens, int64 [batch, sequence], or hidden states [batch, sequence, hidden_size].

        Returns hidden states, on the last stage logits [batch, sequence, vocab_size].
        """
        kind = "input_ids" if self.is_first else "inputs_embeds"
        if self.is_last:
            logits: torch.Tensor = self.model(**{kind: received}).logits
            return logits
        hidden: torch.Tensor = self.model.base_model(**{kind: received}).last_hidden_state
        return hidden

    def loss(self, logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Next-token loss of the model, mean over the batch, from the last stage's logits."""
        loss: torch.Tensor = self.model.loss_function(
            logits=logits, labels=tokens, vocab_size=self.model.config.vocab_size
        )
        return loss

    def tied_weight(self) -> torch.nn.Parameter | None:
        """The tied embedding, on the two stages that hold it; None elsewhere."""
        if not self.is_tied or not (self.is_first or self.is_last):
            return None
        weight: torch.nn.Parameter = self.model.get_input_embeddings().weight
        return weight


class _PassThroughModule(torch.nn.Module):
    """Takes the place of another stage's module: returns its input."""

    def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return hidden_states


class _NoPositions(torch.nn.Module):
    """Takes the place of positional embeddings, which the first stage has already added."""

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """Return zero."""
        return torch.zeros((), device=positions.device)


def build_stage(job: Job, index: int, num_stages: int) -> Stage:
    """Build stage `index` of `num_stages` of the job's model, on the job's device, with its initial weights."""
    whole = job.shape_model(on_meta=True)
    stage = Stage(whole, index, divide_model(whole, num_stages))
    give_memory(stage.model, job.device.torch_device, DTYPES[job.trial.precision])
    job.fill_weights(stage.model)
    stage.train()
    return stage


def divide_model(model: Any, num_stages: int) -> list[range]:
    """Divide the blocks of `model` over the stages, with parameters as even as possible."""
    names = _NAMES[model.config.model_type]
    base = model.base_model
    first = [getattr(base, name) for name in (names.embedding, names.positions) if name is not None]
    last = [getattr(base, names.norm), model.get_output_embeddings()]
    blocks = [_num_parameters(block) for block in getattr(base, names.blocks)]
    return divide_blocks(blocks, sum(map(_num_parameters, first)), sum(map(_num_parameters, last)), num_stages)


def _num_parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
