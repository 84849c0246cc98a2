"""Models with released weights, from `released.yaml`: their configs and hub ids.

A hub id of the list needs no network, so that a plan for it can be made on any machine, with the same result.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from zerobench.config.trial.base import Spec
from zerobench.config.trial.model import ModelSpec


class ReleasedModel(Spec):
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


def _read() -> dict[str, ReleasedModel]:
    families = yaml.safe_load(Path(__file__).with_name("released.yaml").read_text(encoding="utf-8"))
    models = [ReleasedModel(family=family["family"], **model) for family in families for model in family["models"]]
    return {model.name: model for model in models}


RELEASED = _read()
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
