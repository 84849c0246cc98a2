"""A model given by its transformers config: built with random weights, nothing is downloaded."""

from typing import Any

from pydantic import Field

from zerobench.config.trial.base import Spec


class ModelSpec(Spec):
    """A causal language model: name in tables, and transformers config."""

    name: str = Field(min_length=1)
    """Preset name, or the user's own."""
    hf_config: dict[str, Any]
    """Arguments of `transformers.AutoConfig.for_model`, `model_type` among them."""

    @property
    def model_type(self) -> str:
        """Transformers architecture, for example `gpt2` or `llama`."""
        return str(self.hf_config["model_type"])
