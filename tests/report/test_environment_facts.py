"""Facts of a run's environment, as reports say them."""

import pytest

from zerobench.report.environment_facts import predicted_with
from zerobench.spec.model import ModelSpec
from zerobench.spec.trial import Evidence, TrialSpec

ENVIRONMENT = {"versions": {"torch": "2.13.0+cpu", "deepspeed": "0.19.8"}, "emulator": {"torch": "2.13.0+cu130"}}


def spec(evidence: Evidence) -> TrialSpec:
    return TrialSpec(model=ModelSpec(name="m", hf_config={}), strategy="zero1", evidence=evidence)


def test_of_emulated_trials_the_cuda_build_that_they_ran_is_named_too():
    engine, emulated = predicted_with(ENVIRONMENT, [spec(Evidence.EMULATED)])
    assert engine.startswith("predicted with: DeepSpeed 0.19.8, torch 2.13.0+cpu")
    assert emulated == "emulated with: torch 2.13.0+cu130; other releases may differ"


@pytest.mark.parametrize(
    ("evidence", "lines"), [(Evidence.MEASURED, 0), (Evidence.SOLO, 1), (Evidence.SIMULATED, 1), (Evidence.FORMULA, 1)]
)
def test_of_other_trials_it_is_not(evidence, lines):
    said = predicted_with(ENVIRONMENT, [spec(evidence)])
    assert len(said) == lines
    assert not any("emulated" in line for line in said)
