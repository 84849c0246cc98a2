"""Which causal language models the installed transformers can build, with which attention and rotary positions; without
importing it.
"""

import ast
from functools import cache

from zerobench.spec.architecture import DEFAULTS
from zerobench.spec.model import ModelSpec
from zerobench.spec.toolchain import package_folder

_TABLE = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
"""What AutoModelForCausalLM goes by (transformers/models/auto/modeling_auto.py): pairs of a model type and a class."""
_ROPE_TABLE = "ROPE_INIT_FUNCTIONS"


def is_causal_model(spec: ModelSpec) -> bool:
    """Whether transformers has a causal language model of this type, or the config brings code of its own; True where
    nobody can tell.
    """
    types = causal_model_types() if spec.model_type not in DEFAULTS else None
    return types is None or spec.model_type in types or bool(spec.hf_config.get("auto_map"))


@cache
def causal_model_types() -> frozenset[str] | None:
    """The model types of the installed transformers; None where it is not installed, or is another than we know."""
    tables = _assigned(_TABLE, "models", "auto", "modeling_auto.py")
    pairs = [item for table in tables for item in ast.walk(table) if isinstance(item, ast.Tuple)]
    model_types = {pair.elts[0].value for pair in pairs if pair.elts and isinstance(pair.elts[0], ast.Constant)}
    return frozenset(map(str, model_types)) or None


def takes_sdpa(spec: ModelSpec) -> bool:
    """Whether transformers' class takes torch's scaled_dot_product_attention; True where nobody can tell."""
    return "_supports_sdpa = False" not in _source(spec.model_type)


def unknown_rope_type(spec: ModelSpec) -> tuple[str, list[str]] | None:
    """The type of rotary positions that the config asks for and transformers does not have, with those that it has."""
    if _ROPE_TABLE not in _source(spec.model_type):
        return None
    rotary = spec.hf_config.get("rope_scaling") or spec.hf_config.get("rope_parameters")
    kind = (rotary.get("rope_type") or rotary.get("type")) if isinstance(rotary, dict) else None
    known = rope_types()
    return None if kind is None or not known or kind in known else (str(kind), sorted(known))


@cache
def rope_types() -> frozenset[str]:
    """The types of rotary positions that transformers has (modeling_rope_utils.py); none where nobody can tell."""
    tables = _assigned(_ROPE_TABLE, "modeling_rope_utils.py")
    keys = [key for table in tables if isinstance(table, ast.Dict) for key in table.keys]
    known = {str(key.value) for key in keys if isinstance(key, ast.Constant)}
    return frozenset(known | {"default"}) if known else frozenset()


@cache
def _source(model_type: str) -> str:
    """The module of the model's class (transformers/models/<type>/modeling_<type>.py); empty where there is none."""
    return _read("models", model_type, f"modeling_{model_type}.py") if model_type.isidentifier() else ""


def _assigned(name: str, *path: str) -> list[ast.expr]:
    """What a module of transformers assigns to `name` at its top."""
    try:
        body = ast.parse(_read(*path)).body
    except (SyntaxError, ValueError):
        return []
    made = [node for node in body if isinstance(node, ast.Assign | ast.AnnAssign) and name in _names(node)]
    return [node.value for node in made if node.value is not None]


def _read(*path: str) -> str:
    """A file of the installed transformers; empty where there is none."""
    folder = package_folder("transformers")
    try:
        return folder.joinpath(*path).read_text(encoding="utf-8") if folder else ""
    except (OSError, ValueError):
        return ""


def _names(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]
