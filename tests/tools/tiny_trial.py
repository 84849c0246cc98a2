"""A trial that is simulated in a second."""

from typing import Any

from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import PredictionSpec, TrialSpec

SHAPE = {"family": "llama", "name": "tiny", "num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 500}


def tiny(**fields: Any) -> TrialSpec:
    """One rank of four on A100s, at stage 2, unless `fields` say otherwise."""
    work = {"model": resolve_model(SHAPE | {"max_position_embeddings": 64}), "strategy": "zero2", "gpus_per_node": 4}
    work |= {"sequence_length": 32, "evidence": "simulated", "prediction": PredictionSpec(gpu="A100 SXM 80GB")}
    return TrialSpec.model_validate(work | fields)
