"""Selects the trained weights of a model: LoRA's adapters of a frozen model, or all but those with given names.

The adapters are those of Hu et al. 2021 (arXiv:2106.09685), implemented here so that they run in every world; tests
compare them with PEFT's, whose names they have: `base_layer`, `lora_A`, `lora_B`. They have the model's own type, with
fp32 copies as master weights; or they are in fp32 in a 16-bit model, and the optimizer updates them directly.
"""

import re
from collections.abc import Iterator
from typing import Any

import torch

from zerobench.config.trial.adapter import ALL_LINEAR, lora_of
from zerobench.config.trial.trial import TrialSpec
from zerobench.rank.training.quantised import QuantisedLinear

BASE = ".base_layer."
"""Part of the name of each weight with an adapter, and of no other."""
ADAPTER = ".lora_"
"""Part of the name of each adapter weight, and of no other."""
ZERO_AT_FIRST = ".lora_B.weight"
"""Suffix of weights that start at zero, so that training starts from the original model."""
SCALING = 2.0
"""Factor of the adapter's product: alpha / rank, with alpha twice the rank."""


class LoraLayer(torch.nn.Module):
    """A frozen matrix and its adapter."""

    def __init__(self, base: Any, rank: int, dtype: torch.dtype, *, is_wide: bool = False) -> None:
        super().__init__()
        self._is_wide = is_wide  # stored: reading the type of a weight in forward would make ZeRO-3 gather it
        inputs, outputs = sizes_of(base)
        device = base.weight.device  # valid under zero.Init too, where the weight is already partitioned
        self.base_layer = base
        self.lora_A = torch.nn.Linear(inputs, rank, bias=False, device=device, dtype=dtype)
        self.lora_B = torch.nn.Linear(rank, outputs, bias=False, device=device, dtype=dtype)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Add B A x times the scaling to the output of the matrix.

        A wide adapter's B A x is computed in fp32, and the output has the matrix's type. As in PEFT, the sum is cast
        (tuners/lora/layer.py, Linear), or the product if bitsandbytes quantises the matrix (tuners/lora/bnb.py,
        Linear4bit).
        """
        output: torch.Tensor = self.base_layer(hidden)
        added: torch.Tensor = self.lora_B(self.lora_A(hidden.float() if self._is_wide else hidden)) * SCALING
        if isinstance(self.base_layer, QuantisedLinear):
            added = added.to(output.dtype)
        return (output + added).to(output.dtype)


def add_adapters(model: Any, trial: TrialSpec, dtype: torch.dtype) -> None:
    """Add an adapter to each matrix that the trial names, in `dtype`, or in fp32 if the trial widens adapters.

    Raises ValueError if the model has no such matrix.
    """
    if trial.adapter is None:
        return
    lora = lora_of(trial.adapter)
    wide = trial.widens_adapters
    candidates = list(matrices(model))
    targets = [matrix for matrix in candidates if not lora.targets or matrix[1] in lora.targets]
    missing = set(lora.targets) - {name for _, name, _ in targets}
    if missing or not targets:
        raise ValueError(
            f"adapter {trial.adapter}: the model has no matrix called {' or '.join(sorted(missing)) or ALL_LINEAR}; "
            f"choices: {', '.join(sorted({name for _, name, _ in candidates}))}"
        )
    for parent, name, base in targets:
        setattr(parent, name, LoraLayer(base, lora.rank, torch.float32 if wide else dtype, is_wide=wide))


def freeze(model: torch.nn.Module, trial: TrialSpec, dtype: torch.dtype | None = None) -> None:
    """Freeze the parameters that the trial does not train, and convert them to `dtype` if given.

    Raises ValueError if `frozen` matches no parameter's name, or all of them.
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
    """Yield parent module, name and matrix for each matrix but the head; replacements on the way are not visited."""
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, torch.nn.Linear | Conv1D | QuantisedLinear) and child is not head:
                yield parent, name, child


def sizes_of(base: Any) -> tuple[int, int]:
    """Inputs and outputs of a matrix: torch's, or GPT-2's, which is stored transposed."""
    if isinstance(base, torch.nn.Linear | QuantisedLinear):
        return base.in_features, base.out_features
    return int(base.nx), int(base.nf)


def quantise_matrices(model: Any, kind: str | None, device: torch.device, dtype: torch.dtype) -> None:
    """Quantise every matrix but the head to codes of `kind`, like transformers; None leaves them as they are."""
    for parent, name, base in list(matrices(model)) if kind else []:
        setattr(parent, name, QuantisedLinear(base, sizes_of(base), str(kind), device, dtype))
