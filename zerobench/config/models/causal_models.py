"""Which causal language models the installed transformers can build, with which attention and rotary positions; without
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
"""What AutoModelForCausalLM goes by (transformers/models/auto/modeling_auto.py): pairs of a model type and a class."""
_ROPE_TABLE = "ROPE_INIT_FUNCTIONS"
_SUPPORTS = {Attention.SDPA: "_supports_sdpa", Attention.FLASH_ATTENTION_2: "_supports_flash_attn"}
"""What a class declares of each attention (PreTrainedModel in transformers/modeling_utils.py: False unless it does)."""
_CONFIG_TABLE = "CONFIG_MAPPING_NAMES"
_PREFIX = "prefix_lm"
_OTHER_FLASH_KERNELS = "_compatible_flash_implementations"
"""Where a class lists its flash kernels and flash_attention_2 is none of them, transformers runs the first of them."""


def is_causal_model(spec: ModelSpec) -> bool:
    """Whether transformers has a causal language model of this type, or the config brings code of its own; True where
    nobody can tell.
    """
    types = causal_model_types() if spec.model_type not in DEFAULTS else None
    return types is None or spec.model_type in types or bool(spec.hf_config.get("auto_map"))


@cache
def causal_model_types() -> frozenset[str] | None:
    """The model types of the installed transformers; None where it is not installed, or is another than we know."""
    return frozenset(_classes()) or None


def takes_attention(spec: ModelSpec, attention: Attention) -> bool:
    """Whether transformers' class of the model runs with this attention; True where its source does not tell, as for
    code that comes with a config.
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
    """Whether each token of the prompt attends to all of it, a mask that FlashAttention has no form for (hrm_text)."""
    asked = spec.hf_config.get(_PREFIX)
    if asked is not None:
        return bool(asked)
    folder, name, _ = model_module(spec.model_type)
    config = table(_CONFIG_TABLE, "models", "auto", "auto_mappings.py").get(spec.model_type, "")
    return bool(class_values(config, (_PREFIX,), folder, name, f"configuration_{name}.py").get(_PREFIX))


def _declared(spec: ModelSpec) -> dict[str, object] | None:
    """What the model's class declares of attention; None where there is no source of it."""
    class_name = _classes().get(spec.model_type)
    module = model_module(spec.model_type)
    if not class_name or class_name not in source(*module) or spec.hf_config.get("auto_map"):
        return None
    return class_values(class_name, (*_SUPPORTS.values(), _OTHER_FLASH_KERNELS), *module)


def _classes() -> dict[str, str]:
    """The class of each model type."""
    return table(_TABLE, "models", "auto", "modeling_auto.py")


def unknown_rope_type(spec: ModelSpec) -> tuple[str, list[str]] | None:
    """The type of rotary positions that the config asks for and transformers does not have, with those that it has."""
    if _ROPE_TABLE not in source(*model_module(spec.model_type)):
        return None
    rotary = spec.hf_config.get("rope_scaling") or spec.hf_config.get("rope_parameters")
    kind = (rotary.get("rope_type") or rotary.get("type")) if isinstance(rotary, dict) else None
    known = rope_types()
    return None if kind is None or not known or kind in known else (str(kind), sorted(known))


@cache
def rope_types() -> frozenset[str]:
    """The types of rotary positions that transformers has (modeling_rope_utils.py); none where nobody can tell."""
    tables = assigned(_ROPE_TABLE, "modeling_rope_utils.py")
    keys = [key for value in tables if isinstance(value, ast.Dict) for key in value.keys]
    known = {str(key.value) for key in keys if isinstance(key, ast.Constant)}
    return frozenset(known | {"default"}) if known else frozenset()
