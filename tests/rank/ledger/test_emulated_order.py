"""The order in which an emulated rank issues its step is that of a simulated one, item by item.

Both say what an operation costs by the same table; streams, events and who waits for a collective are torch's and
NCCL's own in one world, and a model of them in the other.
"""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.prediction.simulated import gpu_trial, simulate
from tests.estimate.time.predicted_trials import expected, gpu, links
from tests.estimate.time.test_replayed import AXES, SHAPE
from tests.report.sample_run import SampleTrial, trial_record
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.estimate.clock.trace import (
    Call,
    CollectiveWait,
    EventRecord,
    EventWait,
    HostCopy,
    Item,
    Kernels,
    StepTrace,
    unpack,
)
from zerobench.estimate.time.expected import timeline
from zerobench.records.records import RankRecord

ENGINES = ("ddp", "zero1", "zero3", "fsdp", "offloaded", "swapped", "pipeline")
SECOND_STEP = "ddp in its second step"
Pair = dict[Evidence, tuple[TrialSpec, RankRecord]]


@pytest.fixture(scope="module")
def pairs(emulator: Any) -> dict[str, Pair]:
    del emulator  # skips where there is none
    small = SHAPE.model_copy(update={"num_layers": 3, "hidden_size": 512, "num_heads": 8})
    usual: dict[str, Any] = {"world_size": 16, "sequence_length": 512, "micro_batch_size": 2}
    asked = {
        (name, world): gpu_trial(**usual | {"model": small.model_spec()} | AXES[name] | {"evidence": world})
        for name in ENGINES
        for world in (Evidence.EMULATED, Evidence.SIMULATED)
    }
    several_buckets = SHAPE.model_copy(update={"num_layers": 3, "hidden_size": 1024, "num_heads": 8}).model_spec()
    asked[SECOND_STEP, Evidence.EMULATED] = gpu_trial(
        several_buckets, 0, 8, sequence_length=64, strategy="ddp", evidence=Evidence.EMULATED
    )
    records = dict(zip(asked, simulate(list(asked.values())), strict=True))
    return {
        name: {world: (asked[name, world], records[name, world]) for (other, world) in asked if other == name}
        for name in (*ENGINES, SECOND_STEP)
    }


def test_a_steady_step_in_which_ddp_deals_its_buckets_anew_has_an_order(pairs: dict[str, Pair]) -> None:
    """With several buckets it does so before the second step, outside of any backward pass."""
    _, record = pairs[SECOND_STEP][Evidence.EMULATED]
    items = unpack(record.step_trace or "").items
    kinds = [item.kind for item in items if isinstance(item, Call)]
    assert kinds.count("all_reduce") > 1
    assert "broadcast" in kinds


def traces(pair: Pair) -> list[StepTrace]:
    return [unpack(record.step_trace or "") for _, record in pair.values()]


def told(trace: StepTrace) -> list[Item | tuple[Any, ...]]:
    """Streams and events by the order in which they come, work by what it is."""
    streams: dict[int | None, int | None] = {None: None}
    events: dict[int | None, int | None] = {None: None}

    def number(of: dict[int | None, int | None], one: int | None) -> int | None:
        return of.setdefault(one, len(of))

    found: list[Item | tuple[Any, ...]] = []
    for item in trace.items:
        match item:
            case Kernels(stream, work):
                found.append(("kernels", number(streams, stream), trace.works[work]))
            case EventRecord(stream, event) | EventWait(stream, event):
                found.append((type(item).__name__, number(streams, stream), number(events, event)))
            case CollectiveWait(stream, _) | HostCopy(stream, _, _, _) | Call(stream, _, _, _, _):
                found.append((type(item).__name__, number(streams, stream), *item[1:]))
            case _:
                found.append(item)
    return found


@pytest.mark.parametrize("name", ENGINES)
def test_what_an_emulated_rank_issues_is_what_a_simulated_one_does(pairs: dict[str, Pair], name: str) -> None:
    emulated, simulated = (told(trace) for trace in traces(pairs[name]))
    assert len(emulated) > 10
    assert emulated == simulated


@pytest.mark.parametrize("name", ENGINES)
def test_an_emulated_step_is_replayed(pairs: dict[str, Pair], name: str) -> None:
    times = []
    for spec, record in pairs[name].values():
        trial = SampleTrial(spec, trial_record(spec), [record])
        times.append(expected(trial).step_s)
        assert (timeline(trial, gpu(), links()) is not None) == (name != "pipeline")
    assert times[0] == pytest.approx(times[1])


def test_stage_3_gathers_and_reduces_on_streams_of_its_own(pairs: dict[str, Pair]) -> None:
    emulated, _ = traces(pairs["zero3"])
    kinds = {item.kind: item.stream for item in emulated.items if isinstance(item, Call)}
    main = next(item.stream for item in emulated.items if isinstance(item, Kernels))
    assert len({kinds["all_gather"], kinds["reduce_scatter"], main}) >= 2
    assert kinds["reduce_scatter"] != main
