"""Weights are read from files where transformers makes the model; elsewhere it is refused, with the reason."""

from typing import Any

import pytest

from tests.config.machines import CPU
from tests.config.rules.test_speed_rules import skip
from tests.tools.known import known
from zerobench.config.derived.strategy import STRATEGIES
from zerobench.config.trial.trial import Evidence

LOADED = {"weights": "loaded"}
ABLE = {"single", "ddp", "zero0", "zero1", "zero2", "zero3"}


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name not in {"horovod", "tensorflow"}])
def test_the_strategies_whose_model_transformers_makes_read_it_and_the_others_say_why_not(strategy: str) -> None:
    ranks = 1 if strategy == "single" else 2
    refused = skip(CPU, strategy=strategy, gpus_per_node=ranks, precision="fp32", **LOADED)
    assert (refused is None) == (strategy in ABLE)
    if refused is not None:
        assert refused.reason.startswith(f"weights loaded at {strategy}: ")
        assert "zero3" in refused.reason


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"adapter": "lora-8-nf4"}, "weights loaded with adapter lora-8-nf4: bitsandbytes quantises while"),
        ({"evidence": Evidence.FORMULA}, "weights loaded formula: no formula for reading files"),
        ({"evidence": Evidence.EMULATED}, "weights loaded emulated: host memory is real there"),
        ({"ds_config": {"tensor_parallel.autotp_size": 2}}, "weights loaded with AutoTP"),
    ],
)
def test_what_is_not_played_is_refused_with_its_reason(more: dict[str, Any], said: str) -> None:
    refused = skip(CPU, strategy="zero2", precision="fp32", **LOADED, **more)
    assert known(refused).reason.startswith(said)


@pytest.mark.parametrize("evidence", ["measured", "solo", "simulated"])
def test_adapters_beside_a_loaded_model_are_allowed_in_every_world_that_loads(evidence: str) -> None:
    assert skip(CPU, strategy="zero3", precision="fp32", adapter="lora-8", evidence=evidence, **LOADED) is None
