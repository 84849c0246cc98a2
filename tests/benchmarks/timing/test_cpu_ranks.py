"""What CPU ranks are judged by: a run of one rank says the rates, gloo by itself what a collective takes."""

import json

import pytest

from benchmarks.timing.cpu_ranks import (
    ALONE,
    OFFLOAD,
    REFERENCE,
    SMALLEST,
    Alone,
    alone_rows,
    cells,
    engine_of_cell,
    measured,
    pairs,
)
from benchmarks.timing.cpu_ranks import calibrated as rates_of
from tests.tools.known import known
from zerobench.common.errors import UserError
from zerobench.estimate.time.cpu_ranks import (
    MAPPING,
    Gloo,
    Thread,
    Timed,
    flops_of,
    one_at_a_time,
    shipped_threads,
    threads,
)
from zerobench.estimate.time.replay import replay
from zerobench.estimate.time.trace import Call, CollectiveWait, Item, Kernels, PageMapping, PhaseStart, StepTrace, Work

FEW = Work((((64, 32, 16), 3),), (2000, 4000), 10_000, 5)
MANY = Work((((64, 32, 16), 12),), (8000, 16_000), 40_000, 5)
UPDATE = Work((), (0, 0), 40_000, 2)
ZERO1 = {"strategy": "zero1", **SMALLEST}
GLOO = Gloo([Timed("all_reduce", 1000, 200), Timed("all_reduce", 3000, 1200), Timed(MAPPING, 1000, 500)])


def calibrated(alone: dict[str, Alone], gloo: Gloo) -> dict[str, Thread]:
    return threads(rates_of(alone, gloo.mapped_byte_s), gloo)


def step(passes: Work = FEW, *between: Item) -> StepTrace:
    return StepTrace(
        (passes, UPDATE), (PhaseStart("forward"), Kernels(0, 0), *between, PhaseStart("step"), Kernels(0, 1))
    )


def alone(zero1_passes_s: float = 0.4, *between: Item) -> dict[str, Alone]:
    return {
        json.dumps({**REFERENCE, **SMALLEST}): Alone(step(), 0.2, 0.1),
        json.dumps(REFERENCE): Alone(step(MANY), 0.5, 0.1),
        json.dumps(ZERO1): Alone(step(FEW, *between), zero1_passes_s, 0.15),
    }


@pytest.mark.parametrize(("engine", "passes", "expected"), [
    ("single", FEW, (0.2, 0.3)), ("single", MANY, (0.5, 0.6)), ("zero1", FEW, (0.4, 0.55)),
])  # fmt: skip
def test_a_run_of_one_rank_is_replayed_at_its_own_times(engine, passes, expected):
    timeline = known(replay(step(passes), calibrated(alone(), GLOO)[engine]))
    assert (timeline.passes_s, timeline.step_s) == pytest.approx(expected)


def test_products_are_counted_and_half_of_fused_attention():
    assert flops_of(FEW) == 2 * 3 * 64 * 32 * 16 + (2000 + 4000) / 2


def test_memory_that_an_engine_maps_is_not_taken_for_its_python():
    mapped = PageMapping(200_000_000)  # 0.1 s
    threads = calibrated(alone(0.4, mapped), GLOO)
    timeline = known(replay(step(FEW, mapped), threads["zero1"]))
    assert timeline.passes_s == pytest.approx(0.4)
    assert 5 * (calibrated(alone(), GLOO)["zero1"].between_s - threads["zero1"].between_s) == pytest.approx(0.1)


def test_a_slower_machine_slows_all_that_a_rank_computes():
    thread = calibrated(alone(), GLOO)["single"]
    seconds = sum(thread.work_s("forward", FEW).values())
    assert seconds == pytest.approx(0.2)
    twice = type(thread)(**{**vars(thread), "slower": 2.0})
    assert sum(twice.work_s("forward", FEW).values()) == pytest.approx(0.4)


def test_passes_that_take_less_than_their_products_say_no_rates():
    with pytest.raises(UserError, match=r"zero1.*say no rates"):
        calibrated(alone(0.01), GLOO)


@pytest.mark.parametrize(("message_bytes", "seconds"), [
    (4, 200e-9), (1000, 200e-9), (2000, 700e-9), (3000, 1200e-9), (6000, 2400e-9),
])  # fmt: skip
def test_between_two_sizes_of_a_collective_lies_a_straight_line(message_bytes, seconds):
    assert GLOO.call_s(Call(0, "all_reduce", 2, 1, message_bytes)) == pytest.approx(seconds)


def test_a_rank_alone_passes_nothing():
    assert GLOO.call_s(Call(0, "all_reduce", 1, 1, 1000)) == 0


def test_who_computes_passes_nothing_on_meanwhile():
    """Two collectives and then an update: one after another, where a GPU's links would go on beside it."""
    trace = step(FEW, *[Call(0, "all_reduce", 2, 1, 10**9)] * 2)
    thread = calibrated(alone(), GLOO)["single"]
    serial = one_at_a_time(trace)
    assert [item.call for item in serial.items if isinstance(item, CollectiveWait)] == [0, 1]
    beside, after = known(replay(trace, thread)), known(replay(serial, thread))
    assert after.step_s == pytest.approx(0.3 + 2 * 0.4)
    assert beside.step_s == pytest.approx(0.2 + 2 * 0.4)


def test_each_cell_has_a_thread_and_each_trial_of_one_rank_was_measured():
    assert [row.cell for row in alone_rows()] == [json.dumps(cell) for cell in ALONE]
    assert {engine_of_cell(cell) for cell in cells()} <= set(shipped_threads())
    assert {row.cell for row in measured()} == {json.dumps(cell) for cell in cells()}
    assert engine_of_cell({"strategy": "zero2", **OFFLOAD}) != engine_of_cell({"strategy": "zero2"})


def test_pairs_are_of_as_many_tokens_of_one_model_and_of_zero_alone():
    long = {"strategy": "zero1", "micro_batch_size": 1, "sequence_length": 512}
    wide = {"strategy": "zero2", "micro_batch_size": 4, "sequence_length": 128}
    more = {"strategy": "zero2", "gradient_accumulation_steps": 4}
    other = {"strategy": "zero2", "model": "gpt2-10m"}
    usual = {"strategy": "zero3"}
    beside = {"strategy": "fsdp"}
    steps = [(cell, 1.2, 1.0) for cell in (wide, more, other, beside)]
    said = pairs([(long, 1.0, 1.1), (usual, 0.9, 2.0), *steps])
    assert said.startswith("3 pairs, ")
    assert said.endswith("of the 3 that differ by more than 5%, 0 in order")
