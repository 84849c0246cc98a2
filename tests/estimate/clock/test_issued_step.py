"""A step's time from its issue order alone: no model, engine or precision is asked."""

from typing import Any

import pytest

from benchmarks.prediction.simulated import gpu_trial, simulate
from tests.estimate.time.predicted_trials import gpu, links
from tests.report.sample_run import SampleTrial, trial_record
from tests.tools.known import known
from tests.tools.rank_records import rank_record
from zerobench.config.trial.trial import Evidence, OwnScript, TrialSpec
from zerobench.estimate.clock.assumed import script_assumptions
from zerobench.estimate.clock.host import block_issue
from zerobench.estimate.clock.issued_step import Place, issued_step
from zerobench.estimate.clock.rates import rates_of
from zerobench.estimate.clock.trace import (
    BACKWARD,
    FORWARD,
    UPDATE,
    Attention,
    HostCopy,
    PhaseStart,
    Recorder,
    StepTrace,
    unpack,
)
from zerobench.estimate.time.expected import expected_step, timeline, why_no_time

ENGINES = {"single": 1, "zero2": 1, "ddp": 8, "zero1": 8, "zero3": 8, "fsdp": 8}
"""Strategies, and ranks of each."""


def scripts_own(trial: SampleTrial) -> SampleTrial:
    """The same record as a user's script leaves it."""
    spec = trial.spec.model_copy(update={"own": OwnScript(name="train", unknown=("model", "precision"))})
    return SampleTrial(spec, trial_record(spec), list(trial.ranks))


def step(dtype: str = "bf16", *, is_causal: bool = True, record: Recorder | None = None) -> StepTrace:
    """A product and an attention kernel forward, then an update."""
    recorder = record or Recorder()
    recorder.add(PhaseStart(FORWARD))
    recorder.kernel(0, (8192, 4096, 4096), count=20, dtype=dtype)
    recorder.attention(0, 10**13, is_backward=False, kind=Attention(128, 2048, is_causal, False, dtype))
    recorder.add(PhaseStart(BACKWARD))
    recorder.add(PhaseStart(UPDATE))
    recorder.kernel(0, moved_bytes=10**9)
    return known(recorder.trace())


def place(name: str = "H100 SXM", **given: Any) -> Place:
    return Place(gpu(name), links(name, **given), 8, 8)


def seconds(trace: StepTrace, name: str = "H100 SXM") -> float:
    issued = issued_step(trace, place(name), block_issue("single"))
    assert not isinstance(issued, str), issued
    return sum(known(issued.parts()))


@pytest.fixture(scope="module")
def played() -> dict[str, SampleTrial]:
    usual = {"sequence_length": 2048, "micro_batch_size": 4}
    asked = {
        name: gpu_trial("llama-1b", 0, ranks, strategy=name, evidence=Evidence.SIMULATED, **usual)
        for name, ranks in ENGINES.items()
    }
    records = simulate(list(asked.values()))
    return {
        name: SampleTrial(spec, trial_record(spec), [record])
        for (name, spec), record in zip(asked.items(), records, strict=True)
    }


@pytest.mark.parametrize("name", ENGINES)
def test_the_order_alone_gives_the_time_that_the_fitted_rates_of_a_known_model_give(
    played: dict[str, SampleTrial], name: str
) -> None:
    """The fitted rates know the model's blocks and were held against measured steps; between steps they add a loop."""
    trial = played[name]
    fitted, alone = (known(expected_step(each, gpu(), links())) for each in (trial, scripts_own(trial)))
    between_s = known(alone).step_s - fitted.step_s + 0.006
    assert abs(between_s) < 0.05 * fitted.step_s
    assert alone.low_s < alone.step_s < alone.high_s


def test_a_scripts_step_has_a_timeline(played: dict[str, SampleTrial]) -> None:
    shown = known(timeline(scripts_own(played["zero3"]), gpu(), links()))
    assert {"compute", "communication"} <= {span.lane for span in shown.spans}


def test_products_take_as_long_as_their_data_type_does() -> None:
    by_type = {dtype: seconds(step(dtype)) for dtype in ("fp8", "bf16", "tf32", "fp32")}
    assert sorted(by_type, key=lambda dtype: by_type[dtype]) == ["fp8", "bf16", "tf32", "fp32"]


def test_attention_without_a_causal_mask_computes_twice_as_much() -> None:
    masked, whole = (seconds(step(is_causal=is_causal)) for is_causal in (True, False))
    assert whole - masked == pytest.approx(
        10**13 / 2 / (989.5e12 * 0.675 * 2048 / (2048 + 920)) * 1.022 * 1.017, rel=0.02
    )


def test_a_faster_gpu_makes_no_step_longer() -> None:
    assert seconds(step(), "H100 SXM") < seconds(step(), "A100 SXM 80GB")


def test_types_and_masks_survive_the_record() -> None:
    trace = step("tf32", is_causal=False)
    assert unpack(trace.pack()) == trace


def test_what_no_gpu_was_timed_at_is_named_in_one_line() -> None:
    [line] = [words for words in script_assumptions(step("tf32", is_causal=False), 1) if "not timed" in words]
    assert line == "not timed on any GPU, by datasheet peak: attention in tf32, products in tf32"
    assert not any("not timed" in words for words in script_assumptions(step(), 1))


def test_a_step_with_more_items_than_are_kept_has_no_trace() -> None:
    recorder = Recorder(most_items=100)
    for _ in range(200):
        recorder.kernel(0, moved_bytes=1)
        recorder.add(PhaseStart(FORWARD))
    assert recorder.is_given_up
    assert recorder.trace() is None
    assert len(recorder._items) <= 101


def own_trial(trace: StepTrace | None) -> SampleTrial:
    spec = TrialSpec.model_validate(
        {
            "model": {"name": "Net", "hf_config": {"model_type": "unknown"}},
            "strategy": "script",
            "own": {"name": "train"},
            "gpus_per_node": 8,
        }
    )
    rank = rank_record(spec.trial_id, world_size=8, step_trace=None if trace is None else trace.pack())
    return SampleTrial(spec, trial_record(spec), [rank])


def test_why_a_script_has_no_time_is_said() -> None:
    sends, copies = Recorder(), Recorder()
    sends.add(PhaseStart(FORWARD))
    sends.call(0, "send", 2, None, 10)
    sends.kernel(0, moved_bytes=1)
    copies.add(HostCopy(0, True, 10**9, blocks=True))
    reduces = Recorder()
    reduces.call(0, "all_reduce", 8, 1, 10**9)
    said: dict[str, tuple[StepTrace | None, dict[str, Any]]] = {
        "no steady step was recorded: two optimizer steps must be played (--steps 2)": (None, {}),
        "pipeline: the order of one stage does not show how long it waits for others": (step(record=sends), {}),
        "rate of the link unknown for all_reduce": (step(record=reduces), {"link_gb_per_s": None}),
        "rate of the link to the host missing in the catalogue": (step(record=copies), {"host_link_gb_per_s": None}),
    }
    told = [why_no_time(own_trial(trace), gpu(), links(**given)) for trace, given in said.values()]
    assert told == list(said)
    assert [expected_step(own_trial(trace), gpu(), links(**given)) for trace, given in said.values()] == [None] * 4


def test_an_order_of_a_model_that_nobody_knows_has_a_time() -> None:
    shown = known(expected_step(own_trial(step()), gpu(), links()))
    assert shown.step_s == pytest.approx(seconds(step()), rel=0.05)
    assert rates_of(gpu())[0].spread < shown.high_s / shown.step_s - 1


def test_a_machine_whose_launches_are_slower_takes_longer() -> None:
    recorder = Recorder()
    recorder.add(PhaseStart(FORWARD))
    for _ in range(500):
        recorder.kernel(0, moved_bytes=1)
    issued = issued_step(known(recorder.trace()), place(), block_issue("single"))
    assert not isinstance(issued, str)
    host = known(issued.pace.device.host)
    slower = issued.issued_by(replace_launch(host, 2.0))
    assert sum(known(issued.issued_by(None).parts())) < sum(known(issued.parts())) < sum(known(slower.parts()))


def replace_launch(host: Any, times: float) -> Any:
    return host.model_copy(update={"launch_s": times * host.launch_s})
