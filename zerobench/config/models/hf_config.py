"""Reads a user's transformers config without transformers, checks it, and reduces it to what defines the work."""

import json
import math
import re
from pathlib import Path
from typing import Any

from zerobench.common.errors import UserError
from zerobench.config.models.architecture import check_dimensions
from zerobench.config.trial.base import validated
from zerobench.config.trial.model import ModelSpec

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
"""`organisation/name`, the form of repository names on the Hugging Face hub."""

_HUB_TIMEOUT_S = 10.0

_NOT_THE_WORK = frozenset(
    {
        "_name_or_path",
        "architectures",
        "transformers_version",
        # The trial's precision decides the data type, and random weights are never quantized.
        "dtype",
        "torch_dtype",
        "quantization_config",
    }
)


def load_from_path(path: Path) -> ModelSpec:
    """Load the config file `path` (`*.json`), or `config.json` in the folder `path`, which then names the model.

    Raises UserError if there is none, or it is no transformers config.
    """
    file = path if path.name.endswith(".json") else path / "config.json"
    config, folder = _read_json(file), file.resolve().parent
    name = folder.name if file.name == "config.json" else file.stem
    return spec_from_config(config, name=name or "model", where=str(file), origin=folder)


def load_from_hub(hub_id: str) -> ModelSpec:
    """Load the config.json of `hub_id` from the Hugging Face hub, or its cache on this machine.

    Downloads that one file. Raises UserError if the hub does not respond or has no such repository.
    """
    try:
        file = _config_of_hub(hub_id)
    except Exception as error:  # noqa: BLE001 - the client's errors share no base class, and all mean: not there
        reason = _missing_client_remedy(error) or " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(
            f"model: {hub_id!r} is neither a preset nor a path, and its config.json could not be loaded "
            f"from the Hugging Face hub: {reason}"
        ) from None
    return spec_from_config(_read_json(file), name=hub_id, where=f"{hub_id}/config.json", origin=hub_id)


def _missing_client_remedy(error: Exception) -> str | None:
    """Remedy if the hub's client is not installed; it comes with transformers, which a login node may lack."""
    if not isinstance(error, ModuleNotFoundError) or error.name != "huggingface_hub":
        return None
    return "huggingface_hub is not installed; give a config.json, or: python -m pip install huggingface_hub"


def _config_of_hub(hub_id: str) -> Path:
    """Path of the config.json of `hub_id`, downloaded now or earlier."""
    # Imported here because only this way of naming a model needs the network.
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url  # noqa: PLC0415

    try:
        # Asked first because a download without network tries again for half a minute.
        get_hf_file_metadata(hf_hub_url(hub_id, "config.json"), timeout=_HUB_TIMEOUT_S)
    except Exception:  # as above
        if cached := _cached_config(hub_id):
            return cached
        raise
    return Path(hf_hub_download(hub_id, "config.json"))


def _cached_config(hub_id: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - as above

    cached = try_to_load_from_cache(hub_id, "config.json")
    return Path(cached) if isinstance(cached, str) else None


def spec_from_config(config: dict[str, Any], *, name: str, where: str, origin: Path | str | None = None) -> ModelSpec:
    """Model called `name` of the transformers config `config`.

    Dropout stays as it is (see `architecture.has_dropout`); caching is turned off; data type, quantization and
    provenance are dropped. Code that ships with the config (`auto_map`) keeps `origin`, its folder or hub id. `where`
    names the source in errors. Raises UserError for a config without `model_type` or with impossible dimensions.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise UserError(
            f"{where}: model_type: {model_type!r}; must be a transformers architecture, for example llama or gpt2"
        )
    _check_values({"name": name, **config}, where)
    work = _only_the_work(config)
    work["use_cache"] = False
    if isinstance(work.get("text_config"), dict):
        work["text_config"]["use_cache"] = False
    if origin is not None and isinstance(work.get("auto_map"), dict):
        work["auto_map"] = {key: _qualify_code(code, origin) for key, code in work["auto_map"].items()}
    spec = validated(ModelSpec, {"name": name, "hf_config": work}, where)
    check_dimensions(spec, where)
    return spec


def _check_values(value: object, where: str) -> None:
    # Refuse unpaired surrogates, which JSON and file names can contain, and NaN, which Python's JSON reads
    if isinstance(value, str) and not _is_text(value):
        raise UserError(f"{where}: {value!a} is not valid text: unpaired surrogate")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{where}: {value} is not a finite number")
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_values(key, where)
            _check_values(inner, f"{where}: {key}" if _is_text(str(key)) else where)
    if isinstance(value, list):
        for inner in value:
            _check_values(inner, where)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _only_the_work(config: dict[str, Any]) -> dict[str, Any]:
    """Drop keys that do not define the work from `config` and nested configs."""
    return {
        key: _only_the_work(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if key not in _NOT_THE_WORK
    }


def _qualify_code(code: object, origin: Path | str) -> object:
    """Spell a class in another repository as transformers does: `repository--module.Class`."""
    return f"{origin}--{code}" if isinstance(code, str) and "--" not in code else code


def _read_json(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"model: {str(file)!r}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"model: {str(file)!r}: invalid JSON: {' '.join(str(error).split())}") from None
    if not isinstance(config, dict):
        raise UserError(f"model: {str(file)!r}: a transformers config is a JSON object, not {type(config).__name__}")
    return config
