"""Reads a DeepSpeed configuration of the user's own strictly, and fills its gaps from the trial.

Plain JSON only. DeepSpeed reads its files with hjson, which accepts comments and missing commas; a trial keeps its
configuration as JSON that every tool reads, and an ambiguous file is not measured.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zerobench.common.errors import UserError
from zerobench.common.resources import shipped
from zerobench.config.deepspeed.check import AUTO, check_ds_config
from zerobench.config.deepspeed.facts import Fate, fact_of
from zerobench.config.deepspeed.keys import canonical
from zerobench.config.models.architecture import dimensions
from zerobench.config.trial.optimizers import TORCH_NAMES
from zerobench.config.trial.trial import Precision, TrialSpec

_LARGEST_FILE_BYTES = 2**20
_DEEPEST = 20  # sections in sections; DeepSpeed's own go to 4

FILLED_IF_ABSENT = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",  # DeepSpeed's default changed from 0.0 to 1.0 in 0.19
    "optimizer",
    "zero_allow_untested_optimizer",  # without it DeepSpeed refuses SGD
    "zero_force_ds_cpu_optimizer",  # and offloaded states of an optimizer that it is handed
)
"""Keys that a configuration file may leave to the trial without writing `auto`."""


def load_user_config(path: str | Path) -> dict[str, Any]:
    """Read the JSON object in the file `path`, or in the shipped configuration of that name.

    Raises UserError, one line with the file, line and column, if it is no readable JSON object or has a key twice. Keys
    are not checked here (`check_ds_config`).
    """
    file = _existing(Path(path))
    try:
        if file.stat().st_size > _LARGEST_FILE_BYTES:
            raise UserError(f"{file}: larger than {_LARGEST_FILE_BYTES} bytes; not a DeepSpeed configuration")
        config = json.loads(
            file.read_text(encoding="utf-8"), object_pairs_hook=_refuse_duplicates, parse_constant=_no_constant
        )
    except json.JSONDecodeError as error:
        where = f"{file}: line {error.lineno} column {error.colno}"
        raise UserError(f"{where}: {error.msg}; must be plain JSON, without comments") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, a key twice, NaN, nested without end
        raise UserError(f"{file}: {' '.join(str(error).split())[:200]}") from None
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from None
    if not isinstance(config, dict):
        raise UserError(f"{file}: a DeepSpeed configuration is a JSON object, not a {type(config).__name__}")
    if _deeper_than(config, _DEEPEST):
        raise UserError(f"{file}: more than {_DEEPEST} nested sections")
    return config


def complete_user_config(trial: TrialSpec, generated: Mapping[str, Any]) -> dict[str, Any]:
    """Read the trial's own file and fill its gaps from `generated`, the configuration without the file.

    Keys that are not part of a trial are dropped (logging elsewhere, profilers). `auto` values and the keys of
    `FILLED_IF_ABSENT` are filled in. An `auto` that neither the trial nor transformers' rules determine is dropped, so
    that DeepSpeed's default applies. Raises UserError.
    """
    where = str(trial.ds_config_file)
    loaded = load_user_config(where)
    check_ds_config(loaded, where)
    config = _drop_left_out(_canonical_names(loaded, "", where), "")
    for name in FILLED_IF_ABSENT:
        if name in generated and config.get(name, AUTO) == AUTO:
            config[name] = copy.deepcopy(generated[name])
    answers = dict(leaves(generated)) | _trainer_answers(trial)
    return _fill_auto(config, answers, "")


def leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Values of a configuration with their full dotted paths; empty sections are values."""
    for name, value in config.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{path}.")
        else:
            yield path, value


def _existing(path: Path) -> Path:
    if path.is_dir():
        raise UserError(f"ds_config_file: {str(path)!r}: Is a directory; give a file, for example zero2.json")
    if path.exists():
        return path
    folder = shipped("ds_configs")
    if path.parent == Path() and (folder / path.name).is_file():
        return folder / path.name
    choices = ", ".join(sorted(file.name for file in folder.glob("*.json")))
    raise UserError(f"ds_config_file: {str(path)!r}: no such file; shipped ones: {choices}")


def _canonical_names(section: Mapping[str, Any], prefix: str, where: str) -> dict[str, Any]:
    """Rename keys to DeepSpeed's documented names. Raises UserError if both names of one are present."""
    renamed: dict[str, Any] = {}
    for name, value in section.items():
        path = canonical(f"{prefix}{name}")
        last = path.rpartition(".")[2]
        if last in renamed:
            raise UserError(f"{where}: {path} is given twice, once as {prefix}{name}")
        renamed[last] = _canonical_names(value, f"{path}.", where) if isinstance(value, dict) else value
    return renamed


def _drop_left_out(section: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Drop the keys that are not part of a trial, and sections that are empty without them."""
    section_left: dict[str, Any] = {}
    for name, value in section.items():
        path = f"{prefix}{name}"
        inner = _drop_left_out(value, f"{path}.") if isinstance(value, dict) else value
        if value and inner == {}:
            continue
        if fact_of(path).fate is not Fate.LEFT_OUT:
            section_left[name] = inner
    return section_left


def _fill_auto(section: Mapping[str, Any], answers: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    filled: dict[str, Any] = {}
    for name, value in section.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict):
            filled[name] = _fill_auto(value, answers, f"{path}.")
        elif value != AUTO or path in answers:
            filled[name] = copy.deepcopy(answers[path]) if value == AUTO else value
    return filled


def _trainer_answers(trial: TrialSpec) -> dict[str, Any]:
    """Values that transformers' Trainer fills in for `auto` (transformers/integrations/deepspeed.py,
    HfTrainerDeepSpeedConfig), unless the generated configuration has them.
    """
    hyperparameters = trial.hyperparameters
    answers = {
        "bf16.enabled": trial.precision is Precision.BF16,
        "fp16.enabled": trial.precision is Precision.FP16,
        **{f"optimizer.params.{name}": value for name, value in hyperparameters.torch_values(*TORCH_NAMES).items()},
    }
    hidden_size = dimensions(trial.model).hidden_size
    if hidden_size is not None:
        answers["zero_optimization.reduce_bucket_size"] = hidden_size * hidden_size
        answers["zero_optimization.stage3_prefetch_bucket_size"] = int(0.9 * hidden_size * hidden_size)
        answers["zero_optimization.stage3_param_persistence_threshold"] = 10 * hidden_size
    return answers


def _deeper_than(value: object, levels: int) -> bool:
    if not isinstance(value, dict | list) or not value:
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper_than(item, levels - 1) for item in inner)


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    section = dict(pairs)
    if len(section) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} is given twice in one section")
    return section


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
