"""Trials that formulas predict on a GPU of the catalogue, and what the time model says of them."""

from dataclasses import replace
from typing import Any

from benchmarks.timing.fsdp_trace import Fsdp
from tests.report.sample_run import SampleTrial, trial_record
from tests.tools.known import known
from zerobench.config.hardware.hardware import Gpu, find_gpu
from zerobench.config.hardware.links import Links, links_of
from zerobench.config.models.parameters import count_parameters
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import Blocks, Evidence, PredictionSpec, TrialSpec
from zerobench.estimate.clock.rates import kind_rates
from zerobench.estimate.clock.step import ExpectedStep
from zerobench.estimate.memory.record import formula_record
from zerobench.estimate.time.expected import expected_step
from zerobench.estimate.time.passes import decoder_of


def gpu(name: str = "H100 SXM") -> Gpu:
    return known(find_gpu(name))


def links(name: str = "H100 SXM", **given: Any) -> Links:
    return links_of(gpu(name), host_memory_gb_per_s=900, nvme_gb_per_s=20).model_copy(update=given)


def predicted(name: str = "H100 SXM", blocks: Blocks = Blocks.TRANSFORMERS, **axes: Any) -> SampleTrial:
    asked: dict[str, Any] = {"model": resolve_model("llama-7b"), "strategy": "zero3", "gpus_per_node": 8}
    asked |= {
        "sequence_length": 2048,
        "evidence": Evidence.FORMULA,
        "prediction": PredictionSpec(gpu=name, blocks=blocks),
    }
    spec = TrialSpec.model_validate(asked | axes)
    return SampleTrial(spec, trial_record(spec), [formula_record(spec)])


def expected(trial: SampleTrial, name: str = "H100 SXM", at: Links | None = None) -> ExpectedStep:
    return known(expected_step(trial, gpu(name), at or links(name)))


def traced(trial: SampleTrial) -> SampleTrial:
    """`trial` with the trace that torch's FSDP, which divides all that stage 3 does, would leave."""
    spec, [rank] = trial.spec, trial.ranks
    decoder, counts = known(decoder_of(spec.model)), known(count_parameters(spec.model))
    block = (counts.attention + counts.mlp) // decoder.layers
    engine = Fsdp(
        decoder,
        kind_rates("h100"),
        spec.micro_batch_size * spec.sequence_length,
        spec.sequence_length,
        float(spec.activation_checkpointing is True),
        spec.world_size,
        spec.num_nodes,
        2 * block,
        2 * (counts.total - block * decoder.layers),
        gradient_scale=1,
        gathers=2,
        update_bytes=1.0,
    )
    packed = engine.trace(spec.gradient_accumulation_steps).pack()
    return replace(trial, ranks=[rank.model_copy(update={"step_trace": packed})])
