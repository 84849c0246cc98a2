"""Causal language models that the installed transformers can build, with their attention and rotary positions.

Parsed from the source of transformers: an import takes seconds and needs torch, which a login node lacks. If
transformers is not installed, or its source has another form, tables are empty, and callers refuse nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from zerobench.config.hardware.toolchain import package_folder
from zerobench.config.models.architecture import DEFAULTS
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
    is_prefix_lm = spec.hf_config.get(_PREFIX)
    if is_prefix_lm is not None:
        return bool(is_prefix_lm)
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


_MODULE_NAMES = "SPECIAL_MODEL_TYPE_TO_MODULE_NAME"
"""Model types whose module has another name (gemma3_text is in gemma3)."""
_AUTO = ("models", "auto")


def source(*path: str) -> str:
    """Text of a file of transformers; empty if it does not exist."""
    return _text(package_folder("transformers"), path)


def assigned(name: str, *path: str) -> list[ast.expr]:
    """Values that a module assigns to `name` at its top level."""
    assignments = (node for node in _body(*path) if isinstance(node, ast.Assign | ast.AnnAssign))
    return [node.value for node in assignments if name in _targets(node) and node.value is not None]


def table(name: str, *path: str) -> dict[str, str]:
    """Pairs of strings that a module assigns to `name`, or adds with `update`; for a tuple of strings, its first."""
    return _table(package_folder("transformers"), name, path)


def model_module(model_type: str) -> tuple[str, str, str]:
    """Path of the module with the classes of a model type."""
    special = table(_MODULE_NAMES, *_AUTO, "auto_mappings.py") | table(_MODULE_NAMES, *_AUTO, "configuration_auto.py")
    name = special.get(model_type, model_type.replace("-", "_"))
    name = name if name.isidentifier() else ""  # a config may write any text there, a path among them
    return "models", name, f"modeling_{name}.py"


def class_values(class_name: str, names: tuple[str, ...], *path: str) -> dict[str, object]:
    """Constants that a class of the module in `path`, or one of its bases, declares for any of `names`."""
    return _class_values(package_folder("transformers"), class_name, names, path)


@cache
def _table(folder: Path | None, name: str, path: tuple[str, ...]) -> dict[str, str]:
    statements = (node.value for node in _parsed(folder, path) if isinstance(node, ast.Expr))
    added = [
        value for value in statements if isinstance(value, ast.Call) and ast.unparse(value.func) == f"{name}.update"
    ]
    return dict(pair for part in (*assigned(name, *path), *added) for pair in _pairs(part))


@cache
def _class_values(
    folder: Path | None, class_name: str, names: tuple[str, ...], path: tuple[str, ...]
) -> dict[str, object]:
    body = _parsed(folder, path)
    found = next((node for node in body if isinstance(node, ast.ClassDef) and node.name == class_name), None)
    if found is None:
        module = _imported_from(class_name, path)
        return _class_values(folder, class_name, names, module) if module else {}
    values: dict[str, object] = {}
    for base in reversed(found.bases):
        name = ast.unparse(base).rpartition(".")[2]
        values |= _class_values(folder, name, names, path) if name != class_name else {}
    for node in found.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant | ast.List):
            values |= {name: ast.literal_eval(node.value) for name in _targets(node) if name in names}
    return values


def _imported_from(name: str, path: tuple[str, ...]) -> tuple[str, ...] | None:
    """Module of transformers' models from which the one in `path` imports `name`."""
    for node in _body(*path):
        if isinstance(node, ast.ImportFrom) and node.level == 2 and any(alias.name == name for alias in node.names):
            parts = (node.module or "").split(".")
            return ("models", *parts[:-1], f"{parts[-1]}.py")
    return None


def _pairs(value: ast.expr) -> Iterator[tuple[str, str]]:
    """Pairs of `{"a": "b"}`, `[("a", "b")]`, or a call with either."""
    match value:
        case ast.Call(args=arguments):
            for argument in arguments:
                yield from _pairs(argument)
        case ast.Dict(keys=keys, values=values):
            yield from ((_first_text(key), _first_text(second)) for key, second in zip(keys, values, strict=True))
        case ast.List(elts=elements):
            pairs = (element.elts for element in elements if isinstance(element, ast.Tuple))
            yield from ((_first_text(first), _first_text(second)) for first, second in pairs)


def _first_text(node: ast.expr | None) -> str:
    """A string, or the first of a tuple; empty for anything else."""
    if isinstance(node, ast.Tuple) and node.elts:
        return _first_text(node.elts[0])
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _body(*path: str) -> list[ast.stmt]:
    return _parsed(package_folder("transformers"), path)


@cache
def _parsed(folder: Path | None, path: tuple[str, ...]) -> list[ast.stmt]:
    try:
        return ast.parse(_text(folder, path)).body
    except (SyntaxError, ValueError):
        return []


@cache
def _text(folder: Path | None, path: tuple[str, ...]) -> str:
    try:
        return folder.joinpath(*path).read_text(encoding="utf-8") if folder else ""
    except (OSError, ValueError):
        return ""
