"""Causal language models that the installed transformers can build, with their attention and rotary positions; without
importing it.
"""

from __future__ import annotations

import ast
from functools import cache

from zerobench.config.models.architecture import DEFAULTS
from zerobench.config.models.transformers_source import assigned, class_values, model_module, source, table
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import Attention

_TABLE = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
"""AutoModelForCausalLM's table (transformers/models/auto/modeling_auto.py): pairs of a model type and a class."""
_ROPE_TABLE = "ROPE_INIT_FUNCTIONS"
_SUPPORTS = {Attention.SDPA: "_supports_sdpa", Attention.FLASH_ATTENTION_2: "_supports_flash_attn"}
"""Class attribute that declares support of each attention (PreTrainedModel in transformers/modeling_utils.py: False by
default)."""
_CONFIG_TABLE = "CONFIG_MAPPING_NAMES"
_PREFIX = "prefix_lm"
_OTHER_FLASH_KERNELS = "_compatible_flash_implementations"
"""Class attribute with a list of flash kernels: if flash_attention_2 is not in it, transformers runs the first."""


def is_causal_model(spec: ModelSpec) -> bool:
    """Return whether transformers has a causal language model of this type, or the config ships its own code; True if
    unknown.
    """
    types = causal_model_types() if spec.model_type not in DEFAULTS else None
    return types is None or spec.model_type in types or bool(spec.hf_config.get("auto_map"))


@cache
def causal_model_types() -> frozenset[str] | None:
    """Model types of the installed transformers; None if it is not installed, or its source has another form."""
    return frozenset(_classes()) or None


def takes_attention(spec: ModelSpec, attention: Attention) -> bool:
    """Return whether transformers' class of the model supports this attention; True if its source does not say, as for
    code that ships with a config.
    """
    name = _SUPPORTS.get(attention)
    values = _declared(spec) if name is not None else None
    if values is None:
        return True
    kernels = values.get(_OTHER_FLASH_KERNELS)
    is_replaced = isinstance(kernels, list) and attention not in kernels
    refuses_flash = attention is Attention.FLASH_ATTENTION_2 and (is_replaced or _attends_to_prefix(spec))
    return bool(values.get(str(name))) and not refuses_flash


def _attends_to_prefix(spec: ModelSpec) -> bool:
    """Each token of the prompt may attend to all of it, a mask that FlashAttention does not support (hrm_text)."""
    asked = spec.hf_config.get(_PREFIX)
    if asked is not None:
        return bool(asked)
    folder, name, _ = model_module(spec.model_type)
    config = table(_CONFIG_TABLE, "models", "auto", "auto_mappings.py").get(spec.model_type, "")
    return bool(class_values(config, (_PREFIX,), folder, name, f"configuration_{name}.py").get(_PREFIX))


def _declared(spec: ModelSpec) -> dict[str, object] | None:
    """Attention attributes of the model's class; None without its source."""
    class_name = _classes().get(spec.model_type)
    module = model_module(spec.model_type)
    if not class_name or class_name not in source(*module) or spec.hf_config.get("auto_map"):
        return None
    return class_values(class_name, (*_SUPPORTS.values(), _OTHER_FLASH_KERNELS), *module)


def _classes() -> dict[str, str]:
    return table(_TABLE, "models", "auto", "modeling_auto.py")


def unknown_rope_type(spec: ModelSpec) -> tuple[str, list[str]] | None:
    """Rotary type of the config if transformers does not have it, with the types that it has."""
    if _ROPE_TABLE not in source(*model_module(spec.model_type)):
        return None
    rotary = spec.hf_config.get("rope_scaling") or spec.hf_config.get("rope_parameters")
    kind = (rotary.get("rope_type") or rotary.get("type")) if isinstance(rotary, dict) else None
    known = rope_types()
    return None if kind is None or not known or kind in known else (str(kind), sorted(known))


@cache
def rope_types() -> frozenset[str]:
    """Rotary types of the installed transformers (modeling_rope_utils.py); empty if unknown."""
    tables = assigned(_ROPE_TABLE, "modeling_rope_utils.py")
    keys = [key for value in tables if isinstance(value, ast.Dict) for key in value.keys]
    known = {str(key.value) for key in keys if isinstance(key, ast.Constant)}
    return frozenset(known | {"default"}) if known else frozenset()
