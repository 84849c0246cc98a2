"""Resolves the name of a DeepSpeed key as users write it to the full dotted path that DeepSpeed reads.

DeepSpeed ignores most keys that it does not know, so a misspelt one would be measured as if it had been obeyed. The
table is `known_keys.json`, which tests/tools/deepspeed_keys.py writes from DeepSpeed itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from zerobench.common.errors import UserError, choices_for, nearest


@dataclass(frozen=True)
class Key:
    """Type, default and bounds of one key, from DeepSpeed."""

    type: str
    """`int`, `float`, `bool`, `str`, `list`, `section` (known keys below), `free` (any key below) or `any`."""
    default: Any = None
    choices: tuple[Any, ...] = ()
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None


@dataclass(frozen=True)
class KnownKeys:
    """All keys of the DeepSpeed from which the table was made."""

    deepspeed: str
    """Version of DeepSpeed."""
    keys: Mapping[str, Key]
    """By full dotted path."""
    aliases: Mapping[str, str]
    """Second names of a key or a whole section: path to path."""
    deprecated: Mapping[str, str]
    """Old keys, with the path that replaces each."""
    removed: Mapping[str, str]
    """Keys that DeepSpeed refuses, with the reason."""


@cache
def known_keys() -> KnownKeys:
    raw = json.loads(Path(__file__).with_name("known_keys.json").read_text(encoding="utf-8"))
    keys = {path: Key(**entry | {"choices": tuple(entry.get("choices", ()))}) for path, entry in raw["keys"].items()}
    return KnownKeys(raw["deepspeed"], keys, raw["aliases"], raw["deprecated"], raw["removed"])


@lru_cache(maxsize=4096)  # a sweep of thousands of trials asks for the same few paths
def canonical(path: str) -> str:
    """Replace second names in `path` by those that DeepSpeed documents."""
    parts: list[str] = []
    for part in path.split("."):
        parts = known_keys().aliases.get(".".join([*parts, part]), ".".join([*parts, part])).split(".")
    return ".".join(parts)


@lru_cache(maxsize=4096)
def find(path: str) -> Key | None:
    """Key at a full dotted path; below a section that takes any key, one of type `any`. None if unknown."""
    keys = known_keys().keys
    if path in keys:
        return keys[path]
    parts = path.split(".")
    above = (".".join(parts[:depth]) for depth in range(1, len(parts)))
    return Key("any") if all(parts) and any(_is_free(prefix) for prefix in above) else None


def default(path: str) -> Any:
    """DeepSpeed's default of the key at the full dotted `path`."""
    return known_keys().keys[path].default


def resolve_key(name: str) -> str:
    """Resolve `name`, the name of a key or the end of its path, to the full dotted path.

    `reduce_bucket_size`, `offload_optimizer.pin_memory` and full paths are accepted. Raises UserError for an unknown
    name (with the nearest known one), for one that is in several sections (with all of them), and for a key that
    DeepSpeed has replaced or removed.
    """
    refuse_old(name, "ds_config")
    path = canonical(name)
    if find(path) is not None:
        return path
    paths = list(_ending_in(name))
    if len(paths) == 1:
        return paths[0]
    if paths:
        raise UserError(f"ds_config: {name!r} is in several sections; give one of {', '.join(paths)}")
    for old in [*known_keys().deprecated, *known_keys().removed]:
        if old.endswith(f".{name}"):
            refuse_old(old, "ds_config")
    raise unknown_key("ds_config", name)


def refuse_old(path: str, where: str) -> None:
    """Raise UserError for a key that DeepSpeed has replaced or removed."""
    known = known_keys()
    if path in known.deprecated:
        raise UserError(f"{where}: {path}: deprecated by DeepSpeed; use {known.deprecated[path]}")
    if path in known.removed:
        raise UserError(f"{where}: {path}: rejected by DeepSpeed: {known.removed[path]}")


def unknown_key(where: str, path: str) -> UserError:
    """Error for an unknown key, with the nearest known one or the keys of its section."""
    known = known_keys()
    section, _, name = path.rpartition(".")
    close = _close_in(section, name) or _close_anywhere(path, name)
    siblings = [_last(key) for key in known.keys if key.rpartition(".")[0] == section and section in known.keys]
    names = siblings or [key for key in known.keys if "." not in key]
    hint = f"did you mean {close!r}?" if close else choices_for(name, names, "DeepSpeed's documentation", [])
    return UserError(f"{where}: {path!r} is not a key of DeepSpeed {known.deepspeed}; {hint}")


def _close_in(section: str, name: str) -> str | None:
    by_name = {_last(key): key for key in known_keys().keys if key.rpartition(".")[0] == section}
    return next((by_name[close] for close in nearest(name, by_name, 1)), None)


def _close_anywhere(path: str, name: str) -> str | None:
    known = known_keys()
    by_name = {_last(key): key for key in reversed([*known.keys, *known.aliases])}
    close = [by_name[key] for key in nearest(name, by_name, 1)] or nearest(path, known.keys, 1)
    return canonical(close[0]) if close else None


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _ending_in(name: str) -> Iterator[str]:
    """Paths that end in `name`; second names count for the key that they denote."""
    known = known_keys()
    ends = f".{name}"
    seen = dict.fromkeys(path for path in known.keys if path.endswith(ends))
    seen |= dict.fromkeys(path for alias, path in known.aliases.items() if alias.endswith(ends))
    # `params.lr` is `optimizer.params.lr`: below a free section there is no list to look the name up in.
    head, _, rest = name.partition(".")
    if rest and not seen:
        for path, key in known.keys.items():
            if key.type == "free" and path.endswith(f".{head}"):
                seen[f"{path}.{rest}"] = None
    return iter(seen)


def _is_free(path: str) -> bool:
    key = known_keys().keys.get(path)
    return key is not None and key.type == "free"
