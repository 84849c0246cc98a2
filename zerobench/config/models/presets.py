"""Models by name: presets (published shapes, released models, small ones for CPUs), and `resolve_model`.

A sweep may name a preset, a transformers config (a file, a folder or a hub id) or write out a shape. Each becomes a
ModelSpec; weights are random, so only configs are read or downloaded. A hub id in `released.yaml` needs no network, so
that a plan for it can be made on any machine, with the same result.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from zerobench.common.errors import UserError, unknown_choice
from zerobench.config.models.architecture import check_dimensions
from zerobench.config.models.hf_config import HUB_ID, load_from_hub, load_from_path, spec_from_config
from zerobench.config.models.shapes import Shape
from zerobench.config.trial.base import Spec, user_error
from zerobench.config.trial.model import ModelSpec


class ReleasedModel(Spec):
    """A model with released weights, from `released.yaml`."""

    name: str
    """Name of the preset."""
    family: str
    """For users: `Qwen 2.5`."""
    hub_ids: tuple[str, ...]
    """Repositories on the hub with this shape, the base model's first."""
    parameters: int
    """Parameters of the released checkpoint."""
    config: dict[str, Any]
    """Arguments of `transformers.AutoConfig.for_model`."""

    def model_spec(self) -> ModelSpec:
        """Like every preset without dropout, special tokens and caching."""
        always = {"attention_dropout": 0.0, "bos_token_id": None, "eos_token_id": None, "use_cache": False}
        return ModelSpec(name=self.name, hf_config=self.config | always | _PADDING.get(self.config["model_type"], {}))


_PADDING: dict[str, dict[str, Any]] = {"phi3": {"pad_token_id": None}}
"""A token of the original vocabulary that transformers' class compares with the size of ours."""


RELEASED: dict[str, ReleasedModel] = {
    model["name"]: ReleasedModel(family=family["family"], **model)
    for family in yaml.safe_load(Path(__file__).with_name("released.yaml").read_text(encoding="utf-8"))
    for model in family["models"]
}
"""By the preset's name."""

_AROUND = re.compile(r"^meta-|-hf$|[-_ ]")
"""Parts of a repository's name that users omit: `Meta-Llama-3-8B`, `Llama-2-7b-hf`."""


def bare(name: str) -> str:
    """Drop case, hyphens and commonly omitted parts: `llama27b` from `Llama-2-7b-hf` and `llama2-7b`."""
    return _AROUND.sub("", name.lower())


_BY_HUB_ID = {hub_id.lower(): model for model in RELEASED.values() for hub_id in model.hub_ids}


def find_released(hub_id: str) -> ReleasedModel | None:
    """Released model of `hub_id`, in any case, or None."""
    return _BY_HUB_ID.get(hub_id.lower())


def _gpt2(layers: int, hidden: int, heads: int, *, vocab: int = 50257, positions: int = 1024, **more: Any) -> Shape:
    sizes = {"num_layers": layers, "hidden_size": hidden, "num_heads": heads, "vocab_size": vocab}
    return Shape(**{"family": "gpt2", **sizes, "max_position_embeddings": positions, **more})


def _gpt3(layers: int, hidden: int, heads: int) -> Shape:
    return _gpt2(layers, hidden, heads, positions=2048)


def _llama(layers: int, hidden: int, heads: int, mlp: int, *, vocab: int) -> Shape:
    own = {"family": "llama", "intermediate_size": mlp, "tie_word_embeddings": False}
    return _gpt2(layers, hidden, heads, vocab=vocab, positions=2048, **own)


_SHAPES: dict[str, Shape] = {
    # For CPUs: few, wide layers and a small vocabulary, so that model states outweigh activations and
    # Python; the Llama ones untied, which every parallel strategy can split.
    "gpt2-10m": _gpt2(5, 384, 6, vocab=4096),
    "llama-10m": _llama(4, 384, 6, 1024, vocab=4096),
    "llama-20m": _llama(6, 512, 8, 1408, vocab=1792),  # no tensor above the quickstart's 1e6 bucket
    "llama-50m": _llama(6, 768, 12, 2048, vocab=4096),
    # Radford et al. 2019, table 2, heads from the release (hparams.json). Named after the true counts; the
    # paper's own (117M, 345M, 762M, 1542M) are lower.
    "gpt2-125m": _gpt2(12, 768, 12),
    "gpt2-350m": _gpt2(24, 1024, 16),
    "gpt2-774m": _gpt2(36, 1280, 20),
    "gpt2-1.5b": _gpt2(48, 1600, 25),
    # Brown et al. 2020 (arXiv:2005.14165), table 2.1. Two rows of it do not multiply out and are read by
    # their head size of 128: 1.3B has 16 heads (24 printed), 13B a hidden size of 5120 (5140 printed).
    # Attention is dense everywhere, where GPT-3 alternates dense and sparse layers.
    "gpt3-125m": _gpt3(12, 768, 12),
    "gpt3-350m": _gpt3(24, 1024, 16),
    "gpt3-760m": _gpt3(24, 1536, 16),
    "gpt3-1.3b": _gpt3(24, 2048, 16),
    "gpt3-2.7b": _gpt3(32, 2560, 32),
    "gpt3-6.7b": _gpt3(32, 4096, 32),
    "gpt3-13b": _gpt3(40, 5120, 40),
    "gpt3-175b": _gpt3(96, 12288, 96),
}

PRESETS: tuple[str, ...] = (*_SHAPES, *RELEASED)
"""Names of presets, in the order of lists."""


def family_of(name: str) -> str:
    """Family of a preset, for users: `Qwen 2.5`."""
    if released := RELEASED.get(name):
        return released.family
    return {"gpt2": "GPT-2", "gpt3": "GPT-3", "llama": "Llama"}[name.partition("-")[0]]


def is_model(name: str) -> bool:
    """Return whether `name` is a preset, a hub id of one, or the path of a transformers config."""
    return _preset(name) is not None or find_released(name) is not None or Path(name).name == "config.json"


def resolve_model(value: str | Mapping[str, Any]) -> ModelSpec:
    """Resolve `value` to a model.

    A string is a preset (also in its maker's spelling: `Llama-2-7b`), the path of a `config.json` or of its folder, or
    a hub id (`organisation/name`; a preset's needs no network, another downloads only the config). A mapping is a shape
    (`family`, see Shape), a transformers config (`model_type`), either of these under a name (`config` and `name`) or a
    dumped ModelSpec (`name` and `hf_config`). Raises UserError, one line, for anything else.
    """
    if isinstance(value, str):
        return _resolve_name(value)
    if isinstance(value, Mapping):
        return _resolve_mapping(dict(value))
    raise UserError(f"model: {value!r} is neither a name nor a mapping; choices: {_CHOICES}")


_CHOICES = (
    "a preset, the path of a config.json or of its folder, a hub id (organisation/name), "
    "or a mapping with family, num_layers, hidden_size and num_heads"
)


def _resolve_name(text: str) -> ModelSpec:
    if text in PRESETS:
        return _load_preset(text)
    if released := find_released(text):
        return released.model_spec()
    path = _path(text)
    if path is not None:
        return load_from_path(path)
    if HUB_ID.fullmatch(text):
        return load_from_hub(text)
    if preset := _preset(text):
        return _load_preset(preset)
    raise unknown_choice("model", text, PRESETS, "zerobench models")


def _load_preset(name: str) -> ModelSpec:
    return (
        _SHAPES[name].model_copy(update={"name": name}).model_spec() if name in _SHAPES else RELEASED[name].model_spec()
    )


_BY_BARE_NAME = {
    **{bare(hub_id.partition("/")[2]): model.name for model in RELEASED.values() for hub_id in model.hub_ids},
    **{bare(name): name for name in PRESETS},
}


def _preset(name: str) -> str | None:
    """Preset that `name` means, in any case, with or without hyphens, also by a released model's own name."""
    return _BY_BARE_NAME.get(bare(name))


def _path(text: str) -> Path | None:
    """`text` as a path, if it looks like one or exists; None if it cannot be one."""
    looks_so = text.endswith(".json") or text.startswith((".", "/", "~"))
    try:
        path = Path(text).expanduser()
        return path if looks_so or (text and path.exists()) else None
    except (OSError, ValueError, RuntimeError):  # too long a name, a zero byte, no such user
        return None


def _resolve_mapping(value: dict[Any, Any]) -> ModelSpec:
    if "hf_config" in value:
        try:
            named = ModelSpec.model_validate(value)
        except ValidationError as error:
            raise user_error(error, ModelSpec, "model") from None
        return spec_from_config(named.hf_config, name=named.name, where="model")
    if "model_type" in value:
        name = value.pop("name", None) or value["model_type"] or "model"
        return spec_from_config(value, name=str(name), where="model")
    if "config" in value:
        return _resolve_config_field(value)
    try:
        spec = Shape.model_validate(value).model_spec()
    except ValidationError as error:
        line = " ".join(str(user_error(error, Shape, "model")).split())  # a field's name may hold anything
        raise UserError(line.replace(f"{Shape.__name__}: ", "")) from None
    check_dimensions(spec, "model")
    return spec


def _resolve_config_field(value: dict[Any, Any]) -> ModelSpec:
    for field in value:
        if field not in {"config", "name"}:
            raise unknown_choice("model", field, ["config", "name"])
    config = value["config"]
    spec = _resolve_mapping(dict(config)) if isinstance(config, Mapping) else _resolve_name(_text("config", config))
    return spec.model_copy(update={"name": _text("name", value.get("name", spec.name))})


def _text(field: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise UserError(f"model: {field}: {value!r} is not a name; give at least one character")
    return value
