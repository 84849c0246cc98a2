"""Parses the source of the installed transformers for tables and class attributes, without importing it.

The import takes seconds and needs torch, which a login node lacks. If transformers is not installed, or its source has
another form, everything here is empty, and callers refuse nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from zerobench.config.hardware.toolchain import package_folder

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
