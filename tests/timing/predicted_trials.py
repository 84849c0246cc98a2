"""Trials that formulas predict on a GPU of the catalogue, and what the time model says of them."""

from __future__ import annotations

from typing import Any

from tests.report.sample_run import SampleTrial, trial_record
from zerobench.formulas.record import formula_record
from zerobench.report.step_time.expected import expected_step
from zerobench.spec.hardware import Gpu, find_gpu
from zerobench.spec.links import Links, links_of
from zerobench.spec.presets import resolve_model
from zerobench.spec.trial import Evidence, PredictionSpec, TrialSpec
from zerobench.timing.step import Expected


def gpu(name: str = "H100 SXM") -> Gpu:
    found = find_gpu(name)
    assert found is not None
    return found


def links(name: str = "H100 SXM", **given: Any) -> Links:
    return links_of(gpu(name), host_memory_gb_per_s=900, nvme_gb_per_s=20, **given)


def predicted(name: str = "H100 SXM", **axes: Any) -> SampleTrial:
    asked: dict[str, Any] = {"model": resolve_model("llama-7b"), "strategy": "zero3", "gpus_per_node": 8}
    asked |= {"sequence_length": 2048, "evidence": Evidence.FORMULA, "prediction": PredictionSpec(gpu=name)}
    spec = TrialSpec.model_validate(asked | axes)
    return SampleTrial(spec, trial_record(spec), [formula_record(spec)])


def expected(trial: SampleTrial, name: str = "H100 SXM", at: Links | None = None) -> Expected:
    found = expected_step(trial, gpu(name), at or links(name))
    assert found is not None
    return found
