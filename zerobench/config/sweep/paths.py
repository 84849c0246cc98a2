"""Makes relative paths in a sweep absolute, so that it means the same wherever it is read again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerobench.config.models.presets import PRESETS

_PATH_FIELDS = frozenset({"path", "tokenizer"})


def absolute_paths(document: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Make the paths of the valid sweep `document` absolute, relative to `base`."""
    out = dict(document)
    for section in ("axes", "on_cpu"):
        if section in out:
            out[section] = {axis: absolute_axis(axis, raw, base) for axis, raw in out[section].items()}
    for section in ("include", "exclude"):
        if section in out:
            out[section] = [
                {axis: absolute_axis(axis, raw, base) for axis, raw in entry.items()} for entry in out[section]
            ]
    if "data" in out:
        out["data"] = {field: absolute_field(field, raw, base) for field, raw in out["data"].items()}
    return out


def absolute_axis(axis: str, raw: Any, base: Path) -> Any:
    """Make the paths in a value, or list of values, of `axis` absolute."""
    changes = {"nvme_path": _absolute, "ds_config_file": _config_file, "model": _model, "checkpoint": _checkpoint}
    if axis not in changes:
        return raw
    return [changes[axis](value, base) for value in raw] if isinstance(raw, list) else changes[axis](raw, base)


def absolute_field(field: str, raw: Any, base: Path) -> Any:
    """Make the value of the `data` section's `field` absolute if it is a path."""
    return _absolute(raw, base) if field in _PATH_FIELDS else raw


def _absolute(raw: Any, base: Path) -> Any:
    if not isinstance(raw, str) or not raw:
        return raw
    try:
        return str(base / Path(raw).expanduser())
    except RuntimeError:  # `~nobody`: left as it is, and refused as a path that is not there
        return raw


def _config_file(raw: Any, base: Path) -> Any:
    """A user's file, or the bare name of a shipped one."""
    bare = isinstance(raw, str) and "/" not in raw and not _exists(base / raw)
    return raw if bare else _absolute(raw, base)


def _checkpoint(raw: Any, base: Path) -> Any:
    """Only its folder is a path."""
    return raw | {"folder": _absolute(raw["folder"], base)} if isinstance(raw, dict) and "folder" in raw else raw


def _model(raw: Any, base: Path) -> Any:
    """A path, or a mapping whose `config` is one; presets and hub ids stay."""
    if isinstance(raw, dict) and "config" in raw:
        return raw | {"config": _model(raw["config"], base)}
    if not isinstance(raw, str) or raw in PRESETS:
        return raw
    named_as_path = raw.endswith(".json") or raw.startswith((".", "~"))
    return _absolute(raw, base) if named_as_path or _exists(base / raw) else raw


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
