"""Builds the transformers model of a trial: weights drawn or from files, in the trial's precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from zerobench.config.trial.adapter import base_of
from zerobench.config.trial.trial import Attention, Precision, TrialSpec
from zerobench.rank.training.adapters import add_adapters, freeze, quantise_matrices
from zerobench.rank.training.cross_entropy import fuse_loss
from zerobench.rank.training.loading import read_checkpoint
from zerobench.rank.training.recomputation import enable_checkpointing
from zerobench.rank.training.transformers_names import dtype_argument, skip_initialization

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


def prepare_model(
    trial: TrialSpec, device: torch.device, attention: Attention, files: Path | None = None
) -> Callable[..., Any]:
    """Return a function that makes the model on the device, in the trial's precision, with unset weights or those of
    `files`.

    With `on_meta=True` it makes the model in fp32 with buffers but without memory for parameters; frozen ones still
    have the trial's precision.

    The model's module is imported here and not when the model is made: zero.Init replaces torch's tensor constructors
    while it is open, and importing transformers under it fails.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**trial.model.hf_config)
    config.use_cache = False
    _ = AutoModelForCausalLM._model_mapping[type(config)]

    base, dtype = base_of(trial.adapter), DTYPES[trial.precision]

    def load() -> Any:
        if files is None:
            raise ValueError(f"weights {trial.weights}: no folder to read them from")
        model = read_checkpoint(files, trial, dtype, attention.value, device)
        add_adapters(model, trial, dtype)
        return _prepare_training(model, trial, None)

    def make(*, on_meta: bool = False) -> Any:
        without = on_meta or base is not None  # what is quantised is never there in the trial's precision
        with skip_initialization(), torch.device(device), _parameters_on_meta() if without else nullcontext():
            model = AutoModelForCausalLM.from_config(
                config,
                **dtype_argument(torch.float32 if on_meta else dtype),
                attn_implementation=attention.value,
                trust_remote_code=trial.trust_remote_code,
            )
            quantise_matrices(model, base, device, dtype)
            add_adapters(model, trial, torch.float32 if on_meta else dtype)
        model.tie_weights()  # left out with the initialisation that skip_initialization leaves out
        if without and not on_meta:
            give_memory(model, device)
        return _prepare_training(model, trial, dtype if on_meta else None)

    return load if trial.is_loaded else make


def _prepare_training(model: Any, trial: TrialSpec, frozen_dtype: torch.dtype | None) -> Any:
    freeze(model, trial, frozen_dtype)
    if trial.activation_checkpointing:
        enable_checkpointing(model, trial.activation_checkpointing)
    fuse_loss(model, trial.cross_entropy)
    return model


def give_memory(model: torch.nn.Module, device: torch.device, dtype: torch.dtype | None = None) -> None:
    """Allocate memory for every parameter of a model that was made without, values unset; tied ones stay tied.

    They get `dtype`, or keep their types.
    """
    replacements: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                if parameter not in replacements:
                    parameter_dtype = dtype if dtype is not None and parameter.is_floating_point() else parameter.dtype
                    memory = torch.empty_like(parameter, device=device, dtype=parameter_dtype)
                    replacements[parameter] = torch.nn.Parameter(memory, requires_grad=parameter.requires_grad)
                module.register_parameter(name, replacements[parameter])


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Free the memory of parameters as soon as they are registered while open; buffers keep theirs.

    A model made entirely on the meta device would have to recompute its buffers (rotary frequencies) later.
    """
    register = torch.nn.Module.register_parameter

    def registered(self: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            param = torch.nn.Parameter(param.to("meta"), requires_grad=param.requires_grad)
        register(self, name, param)

    torch.nn.Module.register_parameter = registered  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]
