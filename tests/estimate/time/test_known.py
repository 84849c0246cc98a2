"""What is taken for granted of a step's expected time, in words."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.report.sample_run import spec
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.model import ModelSpec
from zerobench.estimate.clock.assumed import COPIES_WORDS, HOST_UPDATE_WORDS, HOST_WORDS, host_assumption
from zerobench.estimate.clock.rates import HostRates, shipped_rates
from zerobench.estimate.clock.step import TENTH, Sides, expected
from zerobench.estimate.time.known import assumptions, overhead_assumption, why_unknown


@pytest.mark.parametrize(("step_s", "is_named"), [(0.1, True), (0.69, True), (0.70, False), (5.0, False)])
def test_what_a_loop_does_between_steps_is_named_where_it_weighs(step_s: float, is_named: bool) -> None:
    assumed = overhead_assumption(0.0695, step_s)
    assert bool(assumed) is is_named
    assert all(words.startswith("70 ms of each step are the training loop's own (data, logging)") for words in assumed)


HOST = shipped_rates().host


def waiting(computing_s: float, launches: int) -> Callable[[HostRates | None], float]:
    """A step that takes what its kernels or their launches take, whichever is longer."""
    return lambda host: computing_s if host is None else max(computing_s, launches * host.launch_s)


def test_a_step_that_waits_for_no_host_that_is_known_is_as_sure_as_its_rates() -> None:
    assert host_assumption(HOST, waiting(1.0, 10_000)) == {}
    assert host_assumption(None, waiting(1.0, 1_000_000)) == {}


def test_a_step_that_a_slow_host_alone_delays_may_be_longer_and_not_shorter() -> None:
    """Launches take 0.7 s on the usual host and 2.2 s on one that nine of ten are faster than."""
    [(words, sides)] = host_assumption(HOST, waiting(1.0, 100_000)).items()
    assert words == f"{HOST_WORDS} 7 us, and the GPU waits for it 0% of the step (55% at 22 us)"
    assert isinstance(sides, Sides)
    assert sides.below == 0
    said = expected((1.0, 0.0, 0.0), 0.0, {words: sides})
    assert (said.low_s, said.high_s) == pytest.approx((1.0, 100_000 * HOST.off(TENTH).launch_s))


def test_a_step_that_waits_for_every_host_is_as_sure_as_the_hosts_are_alike() -> None:
    [(words, sides)] = host_assumption(HOST, waiting(0.01, 1_000_000)).items()
    assert "waits for it 100% of the step" in words
    assert isinstance(sides, Sides)
    assert tuple(sides) == pytest.approx((HOST.launch_spread, HOST.launch_spread))


LLAMA, OTHER = resolve_model("llama-10m"), ModelSpec(name="other", hf_config={"model_type": "bloom"})
CASTS = "the host casts new weights"
FUSED = {"evidence": "simulated", "prediction": {"blocks": "fused"}}
OF_ZERO, BIG = "overlaps its collectives as FSDP does", "stragglers grow beyond 512 ranks"


@pytest.mark.parametrize(
    ("strategy", "fields", "assumed"),
    [
        ("fsdp", {}, {}),
        ("zero2", {}, {f"zero2 {OF_ZERO}": 0.1}),
        ("zero2", {"gpus_per_node": 1}, {}),
        ("zero2", {"gpus_per_node": 1, "offload_optimizer": "cpu"}, {COPIES_WORDS: 0.25, HOST_UPDATE_WORDS: 0.55}),
        ("zero3", {"gpus_per_node": 1, "offload_param": "cpu"}, {COPIES_WORDS: 0.25, CASTS: 0.4}),
        ("fsdp", {"num_nodes": 64, "gpus_per_node": 8}, {}),
        ("fsdp", {"num_nodes": 65, "gpus_per_node": 8}, {BIG: 0.05}),
        ("tensor", {}, {"matrix shards run": 0.15}),
        ("pipeline", {}, {"all stages' blocks": 0.12}),
        ("fsdp", {"compile": "blocks"}, {"compiled blocks fuse": 0.1}),
        ("fsdp", FUSED, {"blocks fuse norms": 0.0}),
        ("fsdp", FUSED | {"model": LLAMA}, {"blocks fuse norms": 0.0, "element-wise work of llama": 0.04}),
        ("fsdp", {"model": OTHER}, {"blocks of bloom move": 0.04}),
        ("fsdp", {"model": LLAMA, "adapter": "lora-8-nf4"}, {"adapters are in 16 bits": 0.02, "dequantizing": 0.05}),
        ("fsdp", {"model": LLAMA, "adapter": "lora-8-fp32"}, {"adapters are in fp32, cast": 0.02}),
    ],
)
def test_what_the_fitted_rows_have_not_is_named_with_its_spread(
    strategy: str, fields: dict[str, Any], assumed: dict[str, float]
) -> None:
    said = assumptions(spec(strategy, **fields))
    assert [*said.values()] == [*assumed.values()]
    assert all(words.startswith(begin) for words, begin in zip(said, assumed, strict=True))


def test_no_time_is_expected_of_what_no_row_is_like() -> None:
    known = ("single", "ddp", "zero0", "zero1", "zero2", "zero3", "fsdp", "tensor", "pipeline")
    assert [why_unknown(spec(name)) for name in known] == [None] * len(known)
    unknown = {
        "parameter-server: rank synchronization not modelled": spec("parameter-server"),
        "eager attention: rates cover fused kernels only": spec("zero1", attention="eager"),
        "precision fp32: rates cover 16 bits only": spec("zero1", precision="fp32"),
    }
    assert [why_unknown(asked) for asked in unknown.values()] == [*unknown]
