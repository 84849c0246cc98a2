"""A model as its transformers config: random weights are built from it, nothing is downloaded."""

from typing import Any

from pydantic import Field

from zerobench.config.trial.base import Spec


class ModelSpec(Spec):
    """A causal language model: its name in tables and the transformers config that builds it."""

    name: str = Field(min_length=1)
    """Preset name, or the name the user gave."""
    hf_config: dict[str, Any]
    """Arguments of `transformers.AutoConfig.for_model`, `model_type` among them."""

    @property
    def model_type(self) -> str:
        """The transformers architecture, for example `gpt2` or `llama`."""
        return str(self.hf_config["model_type"])
