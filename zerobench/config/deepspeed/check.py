"""Refuses DeepSpeed keys that would be ignored or fail: unknown keys, and values of the wrong type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from zerobench.common.errors import UserError, choices_for
from zerobench.config.deepspeed.keys import Key, canonical, find, refuse_old, resolve_key, unknown_key

AUTO = "auto"
"""Left to the caller, in a configuration written for transformers' Trainer."""


def check_overrides(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Resolve a sweep's DeepSpeed keys, short, dotted or nested, to full dotted paths with values of the right type.

    `5e8` and `"5e8"` become 500000000 where DeepSpeed wants an integer. Raises UserError for unknown or ambiguous keys,
    keys given twice, and values of the wrong type.
    """
    resolved: dict[str, Any] = {}
    for name, value in overrides.items():
        if not isinstance(name, str) or not name.strip("."):
            raise UserError(f"ds_config: {name!r} is not a DeepSpeed key; for example reduce_bucket_size")
        for path, leaf in _leaves(resolve_key(name), value):
            if path in resolved:
                raise UserError(f"ds_config: {path} is given twice, the second time as {name!r}")
            resolved[path] = leaf
    return resolved


def check_ds_config(config: Mapping[str, Any], where: str) -> None:
    """Raise UserError, beginning with `where`, for the first unknown key or invalid value.

    `auto` passes: it is filled in later.
    """
    if not isinstance(config, Mapping):
        raise UserError(f"{where}: a DeepSpeed configuration is a JSON object, not {_kind(config)}")
    _check_section(config, "", where)


def _check_section(section: Mapping[str, Any], prefix: str, where: str) -> None:
    for name, value in section.items():
        path = f"{prefix}.{name}" if prefix else str(name)
        refuse_old(path, where)
        key = find(canonical(path)) if "." not in str(name) else None
        if key is None:
            raise unknown_key(where, path)
        if key.type == "section" and isinstance(value, Mapping):
            _check_section(value, canonical(path), where)
        elif value != AUTO:
            typed(path, value, key, where)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The override itself, or those inside it if it is a mapping for a section."""
    refuse_old(path, "ds_config")
    key = find(path)
    if key is None:
        raise unknown_key("ds_config", path)
    if key.type in {"section", "free"} and isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(canonical(f"{path}.{name}"), inner)
    else:
        yield path, typed(path, _parse_text(value, key), key, "ds_config")


def typed(path: str, value: Any, key: Key, where: str) -> Any:
    """Convert `value` to the type of the key at `path`. Raises UserError if it is of another, or out of bounds."""
    if value is None and key.default is None:
        return None
    convert, wanted = _CONVERT[key.type]
    converted = convert(value)
    if converted is _REFUSED:
        default = "" if key.default is None else f"; DeepSpeed's default is {key.default!r}"
        raise UserError(f"{where}: {path}: {_shown(value)} is not {wanted}{default}")
    if key.choices and converted not in key.choices:
        hint = choices_for(converted, map(str, key.choices))
        raise UserError(f"{where}: {path}: {_shown(value)} is not known; {hint}")
    _check_bounds(path, converted, key, where)
    return converted


def _check_bounds(path: str, value: Any, key: Key, where: str) -> None:
    bounds: list[tuple[float | None, str, Callable[[float, float], bool]]] = [
        (key.ge, "at least", lambda v, b: v >= b),
        (key.gt, "more than", lambda v, b: v > b),
        (key.le, "at most", lambda v, b: v <= b),
        (key.lt, "less than", lambda v, b: v < b),
    ]
    for bound, words, holds in bounds:
        if bound is not None and not holds(value, bound):
            raise UserError(f"{where}: {path}: {_shown(value)} must be {words} {bound:g}")


def _whole(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _REFUSED
    if isinstance(value, float) and not value.is_integer():  # infinities and NaN are no integers
        return _REFUSED
    return int(value) if abs(value) < 2**63 else _REFUSED


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**1023:
        return _REFUSED  # the comparison also refuses NaN
    return value


def _instance(*types: type) -> Callable[[Any], Any]:
    return lambda value: value if isinstance(value, types) else _REFUSED


_REFUSED = object()
_MAPPING = _instance(Mapping)
_CONVERT: dict[str, tuple[Callable[[Any], Any], str]] = {
    "int": (_whole, "a whole number of 64 bits"),
    "float": (_number, "a number"),
    "bool": (_instance(bool), "true or false"),
    "str": (_instance(str), "text"),
    "list": (_instance(list, tuple), "a list"),
    "section": (_MAPPING, "a section of keys"),
    "free": (_MAPPING, "a section of keys"),
    "any": (lambda value: value, "a value"),
}


def _parse_text(value: Any, key: Key) -> Any:
    # YAML 1.1 reads 5e8 as text, and the command line reads everything as text
    if not isinstance(value, str) or key.type not in {"int", "float", "bool"}:
        return value
    if key.type == "bool":
        return {"true": True, "false": False}.get(value.lower(), value)
    try:
        return int(value) if value.lstrip("+-").isdecimal() else float(value)
    except ValueError:
        return value


def _kind(value: object) -> str:
    return {list: "a list", str: "text", type(None): "nothing"}.get(type(value), f"a {type(value).__name__}")


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, str | int | float) and len(repr(value)) <= 80 else _kind(value)
