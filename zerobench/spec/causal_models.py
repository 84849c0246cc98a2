"""Which causal language models the installed transformers can build, and with which attention; without importing it."""

from __future__ import annotations

import ast
from functools import cache

from zerobench.spec.architecture import DEFAULTS
from zerobench.spec.model import ModelSpec
from zerobench.spec.toolchain import package_folder

_TABLE = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
"""What AutoModelForCausalLM goes by (transformers/models/auto/modeling_auto.py): pairs of a model type and a class."""


def is_causal_model(spec: ModelSpec) -> bool:
    """Whether transformers has a causal language model of this type, or the config brings code of its own; True where
    nobody can tell.
    """
    types = causal_model_types() if spec.model_type not in DEFAULTS else None
    return types is None or spec.model_type in types or bool(spec.hf_config.get("auto_map"))


@cache
def causal_model_types() -> frozenset[str] | None:
    """The model types of the installed transformers; None where it is not installed, or is another than we know."""
    folder = package_folder("transformers")
    if folder is None:
        return None
    try:
        tree = ast.parse((folder / "models" / "auto" / "modeling_auto.py").read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    tables = [node.value for node in tree.body if isinstance(node, ast.Assign) and _is_named(node)]
    pairs = [item for table in tables for item in ast.walk(table) if isinstance(item, ast.Tuple)]
    found = {pair.elts[0].value for pair in pairs if pair.elts and isinstance(pair.elts[0], ast.Constant)}
    return frozenset(map(str, found)) or None


def takes_sdpa(spec: ModelSpec) -> bool:
    """Whether transformers' class takes torch's scaled_dot_product_attention; True where nobody can tell."""
    return "_supports_sdpa = False" not in _source(spec.model_type)


@cache
def _source(model_type: str) -> str:
    """The module of the model's class (transformers/models/<type>/modeling_<type>.py); empty where there is none."""
    folder = package_folder("transformers")
    if folder is None or not model_type.isidentifier():
        return ""
    try:
        return (folder / "models" / model_type / f"modeling_{model_type}.py").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _is_named(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == _TABLE for target in node.targets)
