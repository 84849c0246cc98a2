"""Which weights of a model are trained: LoRA's adapters beside a frozen model, or all but those of some names.

The adapters are those of Hu et al. 2021 (arXiv:2106.09685), written out here so that they run in every world; tests
hold them against PEFT's, whose names they have: `base_layer`, `lora_A`, `lora_B`. They are in the model's own type, and
their fp32 copies are the optimizer's master weights; or in fp32 beside a 16-bit model, and are what the optimizer
updates.
"""

import re
from collections.abc import Iterator
from typing import Any

import torch

from zerobench.config.trial.adapter import ALL_LINEAR, lora_of
from zerobench.config.trial.trial import TrialSpec
from zerobench.rank.training.quantised import QuantisedLinear

BASE = ".base_layer."
"""In the name of a weight that has an adapter beside it, and in no other."""
ADAPTER = ".lora_"
"""In the names of the weights of adapters, and in no other."""
ZERO_AT_FIRST = ".lora_B.weight"
"""Ends the names of the weights that start at zero, so that training starts from the model as it was."""
SCALING = 2.0
"""What the adapter's product is multiplied by before it is added: alpha / rank, with alpha twice the rank."""


class LoraLayer(torch.nn.Module):
    """A frozen matrix and its adapter."""

    def __init__(self, base: Any, rank: int, dtype: torch.dtype, *, is_wide: bool = False) -> None:
        super().__init__()
        self._is_wide = is_wide  # a weight that is asked for its type in forward is gathered by ZeRO-3
        inputs, outputs = sizes_of(base)
        device = base.weight.device  # under zero.Init it is partitioned already, but has its device
        self.base_layer = base
        self.lora_A = torch.nn.Linear(inputs, rank, bias=False, device=device, dtype=dtype)
        self.lora_B = torch.nn.Linear(rank, outputs, bias=False, device=device, dtype=dtype)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the matrix gives, and B A x times the scaling.

        A wide adapter's B A x is computed in fp32, and what is given is in the matrix's type: as PEFT has it, whose sum
        is cast (tuners/lora/layer.py, Linear), or the product where bitsandbytes quantises the matrix
        (tuners/lora/bnb.py, Linear4bit).
        """
        given: torch.Tensor = self.base_layer(hidden)
        added: torch.Tensor = self.lora_B(self.lora_A(hidden.float() if self._is_wide else hidden)) * SCALING
        if isinstance(self.base_layer, QuantisedLinear):
            added = added.to(given.dtype)
        return (given + added).to(given.dtype)


def add_adapters(model: Any, trial: TrialSpec, dtype: torch.dtype) -> None:
    """Put an adapter beside each matrix that the trial names, in the type, or in fp32 where the trial asks for that.

    Raises ValueError where it names none.
    """
    if trial.adapter is None:
        return
    lora = lora_of(trial.adapter)
    wide = trial.widens_adapters
    there = list(matrices(model))
    chosen = [matrix for matrix in there if not lora.targets or matrix[1] in lora.targets]
    missing = set(lora.targets) - {name for _, name, _ in chosen}
    if missing or not chosen:
        raise ValueError(
            f"adapter {trial.adapter}: the model has no matrix called {' or '.join(sorted(missing)) or ALL_LINEAR}; "
            f"choices: {', '.join(sorted({name for _, name, _ in there}))}"
        )
    for parent, name, base in chosen:
        setattr(parent, name, LoraLayer(base, lora.rank, torch.float32 if wide else dtype, is_wide=wide))


def freeze(model: torch.nn.Module, trial: TrialSpec, dtype: torch.dtype | None = None) -> None:
    """Leave trained what the trial trains, and give what it does not `dtype`, where one is told.

    Raises ValueError where `frozen` is in no parameter's name, or in all of them.
    """
    if trial.adapter is None and trial.frozen is None:
        return
    trained = 0
    frozen = []
    for name, parameter in model.named_parameters():
        is_trained = ADAPTER in name if trial.adapter is not None else re.search(str(trial.frozen), name) is None
        parameter.requires_grad_(is_trained)
        trained += is_trained
        frozen += [] if is_trained else [parameter]
    if not frozen or not trained:
        which = "no" if trained else "every"
        raise ValueError(f"frozen {trial.frozen!r}: it is found in {which} parameter's name")
    for parameter in frozen:
        if dtype is not None:
            parameter.data = parameter.data.to(dtype)


def matrices(model: Any) -> Iterator[tuple[torch.nn.Module, str, Any]]:
    """Module, name in it and matrix, for each but the head; as it was before any was replaced."""
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, torch.nn.Linear | Conv1D | QuantisedLinear) and child is not head:
                yield parent, name, child


def sizes_of(base: Any) -> tuple[int, int]:
    """Inputs and outputs of a matrix: torch's, or GPT-2's, which is stored the other way round."""
    if isinstance(base, torch.nn.Linear | QuantisedLinear):
        return base.in_features, base.out_features
    return int(base.nx), int(base.nf)


def quantise_matrices(model: Any, kind: str | None, device: torch.device, dtype: torch.dtype) -> None:
    """Hold every matrix but the head in the codes of `kind`, which transformers quantises alike; None: leave them."""
    for parent, name, base in list(matrices(model)) if kind else []:
        setattr(parent, name, QuantisedLinear(base, sizes_of(base), str(kind), device, dtype))
