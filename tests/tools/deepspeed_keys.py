"""Which configuration keys the installed DeepSpeed knows, found by asking DeepSpeed itself.

DeepSpeed has no list of its keys: some sections are pydantic models, most are looked up one by one in a plain
dict. So `DeepSpeedConfig` is given a dict that writes down every key looked up in it, with the default; a
section that ends in a pydantic model is recognised by a marker key, and the model's fields are read. What no
such probe can see (keys read outside `DeepSpeedConfig`) is named in `READ_ELSEWHERE`, with the file that reads it.

    python tests/tools/deepspeed_keys.py            prints the keys as JSON
    python tests/tools/deepspeed_keys.py --write    rewrites zerobench/config/deepspeed/known_keys.json

A test compares the printed keys with that file, so that a new DeepSpeed cannot bring a key unnoticed.
"""

import argparse
import enum
import json
import logging
import os
import sys
import types
import typing
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # the keys are the same on every accelerator
logging.disable(logging.CRITICAL)  # the probes make DeepSpeed warn about nonsense values

import deepspeed  # noqa: E402 - only after the accelerator is chosen and the logging is off
from deepspeed.runtime import config as ds_runtime_config  # noqa: E402 - as above
from deepspeed.runtime.config_utils import DeepSpeedConfigModel  # noqa: E402 - as above
from listening_dict import ABSENT, probe  # type: ignore[import-not-found] # noqa: E402 - beside this script

DATA_FILE = Path(__file__).parents[2] / "zerobench" / "config" / "deepspeed" / "known_keys.json"

READ_ELSEWHERE = {
    "sequence_parallel_size": ("__init__.py", {"type": "int", "default": None}),
    "data_parallel_size": ("__init__.py", {"type": "int", "default": None}),
}
"""Keys that `deepspeed.initialize` reads by itself: the file that does, and the key's type."""

FREE_SECTIONS = {
    "optimizer.params",
    "scheduler.params",
    "datastates_ckpt",
    "autotuning.arg_mappings",
    "data_efficiency.data_sampling.curriculum_learning",
    "data_efficiency.data_sampling.dynamic_batching",
    "data_efficiency.data_routing.random_ltd",
}
"""Sections handed on whole to an optimizer, a scheduler or another library: any key may stand below."""

SECTION_ALIASES = {"bfloat16": "bf16"}
"""Sections that DeepSpeed reads under an older name too (precision_config.get_bfloat16_config)."""

TYPES = {
    "activation_checkpointing.number_checkpoints": "int",
    "autotuning.max_train_batch_size": "int",
    "autotuning.metric_path": "str",
    "autotuning.model_info_path": "str",
    "communication_data_type": "str",
    "data_types.buffer_dtype": "str",
    "data_types.grad_accum_dtype": "str",
    "data_types.keep_in_fp32_modules": "any",
    "data_types.param_dtype": "str",
    "flops_profiler.output_file": "str",
    "gradient_accumulation_steps": "int",
    "log_level": "str",
    "optimizer.legacy_fusion": "bool",
    "optimizer.type": "str",
    "pipeline.stages": "any",
    "scheduler.type": "str",
    "steps_per_print": "int",
    "torch_autocast.dtype": "str",
    "torch_autocast.lower_precision_safe_modules": "list",
    "train_batch_size": "int",
    "train_micro_batch_size_per_gpu": "int",
    "vocabulary_size": "int",
}
"""Types of keys that DeepSpeed looks up with no default, or one that does not show the type."""


def walk(path: str, keys: dict[str, dict[str, Any]], aliases: dict[str, str], old: dict[str, str]) -> None:
    """Add to `keys` all that lies under the section `path`."""
    asked, model = probe(path)
    if model is not None:
        keys[path] = {"type": "section", "default": None}
        walk_model(path, model, keys, aliases, old)
        return
    if path and asked:
        keys[path] = {"type": "section", "default": None}
    for key, default in asked.items():
        if key in removed() or key in SECTION_ALIASES:
            continue
        if key in FREE_SECTIONS:
            keys[key] = {"type": "free", "default": None}
            continue
        keys[key] = scalar(key, default)
        walk(key, keys, aliases, old)


def walk_model(
    path: str,
    model: type[DeepSpeedConfigModel],
    keys: dict[str, dict[str, Any]],
    aliases: dict[str, str],
    old: dict[str, str],
) -> None:
    """Add the fields of a pydantic model that stands at `path`, with those of the models in it."""
    for name, field in model.model_fields.items():
        key = f"{path}.{field.alias or name}"
        if field.alias:
            aliases[f"{path}.{name}"] = key
        extra = field.json_schema_extra
        if isinstance(extra, dict) and extra.get("deprecated"):
            old[key] = str(extra.get("new_param", ""))
        inner = inner_model(field.annotation)
        if inner is not None:
            keys[key] = {"type": "section", "default": None}
            walk_model(key, inner, keys, aliases, old)
            continue
        entry: dict[str, Any] = {"type": type_name(field.annotation)}
        entry["default"] = plain(field.get_default(call_default_factory=True))
        if choices := choices_of(field.annotation):
            entry["choices"] = choices
        for bound in field.metadata:
            entry |= {b: getattr(bound, b) for b in ("ge", "gt", "le", "lt") if hasattr(bound, b)}
        keys[key] = entry


def options(annotation: Any) -> list[Any]:
    """The members of a union without None, or the annotation itself."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [a for a in typing.get_args(annotation) if a is not type(None)]
    return [annotation]


def inner_model(annotation: Any) -> type[DeepSpeedConfigModel] | None:
    for option in options(annotation):
        if isinstance(option, type) and issubclass(option, DeepSpeedConfigModel):
            return option
    return None


def choices_of(annotation: Any) -> list[Any]:
    for option in options(annotation):
        if isinstance(option, type) and issubclass(option, enum.Enum):
            return [member.value for member in option]
        if typing.get_origin(option) is typing.Literal:
            return list(typing.get_args(option))
    return []


def type_name(annotation: Any) -> str:
    """`bool`, `int`, `float`, `str`, `list`, `free` (a mapping) or `any`."""
    names = {one_type(option) for option in options(annotation)}
    return names.pop() if len(names) == 1 else "any"


def one_type(annotation: Any) -> str:
    origin = typing.get_origin(annotation) or annotation
    if origin is typing.Literal:
        return "str"
    if not isinstance(origin, type):
        return "any"
    for base, name in ((bool, "bool"), (int, "int"), (float, "float"), (str, "str"), (Path, "str")):
        if issubclass(origin, base):
            return name
    return {list: "list", tuple: "list", dict: "free"}.get(origin, "any")


def scalar(key: str, default: Any) -> dict[str, Any]:
    """A key looked up on its own: its type is that of the default, or what `TYPES` says."""
    value = plain(None if default is ABSENT else default)
    guess = "any" if value in (None, "auto") else one_type(type(value))
    return {"type": TYPES.get(key, guess), "default": value}


def plain(value: Any) -> Any:
    """The value as JSON holds it; what JSON cannot hold has no default worth keeping."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, bool | str | float) or value is None:
        return value
    if isinstance(value, int):
        return int(value)  # DeepSpeed's pp_int prints itself with commas
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return {} if isinstance(value, dict) else None


def removed() -> dict[str, str]:
    """Keys that DeepSpeed refuses because it has removed the feature, with its own first sentence."""
    gone = dict(ds_runtime_config._REMOVED_TOP_LEVEL_CONFIG_KEYS)
    for key, message in ds_runtime_config._REMOVED_ZERO_CONFIG_KEYS.items():
        gone[f"zero_optimization.{key}"] = message
    return {key: message.split(". ")[0].split(" See ")[0].rstrip(". ") for key, message in gone.items()}


def known_keys() -> dict[str, Any]:
    """All keys of the installed DeepSpeed, as `known_keys.json` holds them."""
    keys: dict[str, dict[str, Any]] = {}
    aliases = dict(SECTION_ALIASES)
    old: dict[str, str] = {}
    walk("", keys, aliases, old)
    for name, default in ds_runtime_config.get_pipeline_config({}).items():
        keys[f"pipeline.{name}"] = scalar(f"pipeline.{name}", default)
        keys["pipeline"] = {"type": "section", "default": None}
    for key, (source, entry) in READ_ELSEWHERE.items():
        text = (Path(deepspeed.__file__).parent / source).read_text(encoding="utf-8")
        if f'"{key}"' in text:
            keys[key] = dict(entry)
    deprecated = {key: replacement(key, new, aliases) for key, new in old.items()}
    return {
        "deepspeed": deepspeed.__version__.split("+")[0].strip(),
        "keys": {key: keys[key] for key in sorted(keys) if key not in deprecated},
        "aliases": dict(sorted(aliases.items())),
        "deprecated": dict(sorted(deprecated.items())),
        "removed": dict(sorted(removed().items())),
    }


def replacement(key: str, new: str, aliases: dict[str, str]) -> str:
    """The full path of the key, or keys, that DeepSpeed says replace a deprecated one."""
    parent = key.rsplit(".", 1)[0]
    paths = [f"{parent}.{name}" for name in new.split(" or ")]
    return " or ".join(aliases.get(path, path) for path in paths)


def as_text(table: dict[str, Any]) -> str:
    """The table as JSON with one key a line, so that a change reads well in a diff."""
    parts = []
    for name, value in table.items():
        if isinstance(value, dict):
            lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items())
            parts.append(f" {json.dumps(name)}: {{\n{lines}\n }}")
        else:
            parts.append(f" {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"rewrite {DATA_FILE.name}")
    arguments = parser.parse_args()
    text = as_text(known_keys())
    if arguments.write:
        DATA_FILE.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
