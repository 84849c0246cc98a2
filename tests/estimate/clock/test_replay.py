"""Timelines of small steps, by hand, and what every timeline must keep to."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.estimate.clock.test_kernels import DEVICE
from tests.tools.known import known
from zerobench.estimate.clock.host import QUEUED_LAUNCHES, Head
from zerobench.estimate.clock.kernels import gemm_s
from zerobench.estimate.clock.rates import kind_rates
from zerobench.estimate.clock.replay import Pace, Timeline, replay
from zerobench.estimate.clock.step import replayed
from zerobench.estimate.clock.trace import (
    CollectiveWait,
    Drive,
    DriveWait,
    EventRecord,
    EventWait,
    Host,
    HostCopy,
    PageMapping,
    PhaseStart,
    Recorder,
    StepTrace,
)

PACE = Pace(
    DEVICE,
    slower=1.0,
    launch_s={},
    byte_s={"forward": 1.0, "backward": 1.0, "step": 1.0},
    call_s=lambda call: float(call.message_bytes),
    copied_bytes_per_s=1.0,
    host_bytes_per_s=1.0,
    drive_bytes_per_s=1.0,
)
"""A byte of anything takes a second."""
Write = Callable[[Recorder], Any]


def played(*parts: Write, pace: Pace = PACE) -> Timeline:
    return known(replay(written(*parts), pace))


def written(*parts: Write) -> StepTrace:
    recorder = Recorder()
    recorder.add(PhaseStart("forward"))
    for part in parts:
        part(recorder)
    return known(recorder.trace())


def kernel(seconds: int, stream: int = 0) -> Write:
    return lambda recorder: recorder.kernel(stream, moved_bytes=seconds)


def call(seconds: int, stream: int = 0, kind: str = "all_gather") -> Write:
    return lambda recorder: recorder.call(stream, kind, 8, 1, seconds)


def item(what: Any) -> Write:
    return lambda recorder: recorder.add(what)


def test_a_collective_that_nobody_waits_for_runs_beside_the_kernels_after_it() -> None:
    found = played(call(3), kernel(5), item(CollectiveWait(0, 0)), kernel(2))
    assert found.step_s == 7
    assert found.exposed() == {"all_gather": 0}


def test_what_a_stream_waits_for_and_no_kernel_covers_is_exposed() -> None:
    found = played(kernel(1), call(3), kernel(2), item(CollectiveWait(0, 0)), kernel(2))
    assert found.step_s == 6
    assert found.exposed() == {"all_gather": 1}
    compute, exposed, _ = replayed(found, kind_rates("a100").model_copy(update={"contention": 0.5}), 1)
    assert compute == 5
    assert exposed == 1 + 0.5 * 2, "half of what is hidden is lost all the same"


def test_what_the_loop_takes_for_a_step_and_for_each_of_its_micro_batches_is_the_updates() -> None:
    rates = kind_rates("a100").model_copy(update={"step_s": 0.5, "micro_batch_s": 0.25})
    assert [replayed(played(kernel(1)), rates, count)[-1] for count in (1, 3)] == [0.75, 1.25]


def test_collectives_take_turns_on_the_links_and_begin_when_their_stream_has_come_to_them() -> None:
    found = played(kernel(1), call(3), call(2, stream=1), item(CollectiveWait(0, 1)), kernel(1))
    assert [(one.start_s, one.end_s) for one in found.spans if one.lane == "communication"] == [(1, 4), (4, 6)]
    assert found.step_s == 7


def test_events_order_streams() -> None:
    ordered = played(kernel(2), item(EventRecord(0, 0)), kernel(3), item(EventWait(1, 0)), kernel(2, stream=1))
    assert ordered.spans[-1].start_s == 2
    assert ordered.step_s == 5


def test_the_host_issues_nothing_while_it_waits() -> None:
    waiting = played(kernel(4), item(EventRecord(0, 0)), item(EventWait(None, 0)), kernel(1, stream=1))
    assert waiting.step_s == 5
    assert played(kernel(4), item(EventWait(None, None)), kernel(1, stream=1)).step_s == 5
    assert played(kernel(4), kernel(1, stream=1)).step_s == 4


def test_small_kernels_wait_for_the_host_to_launch_them() -> None:
    assert played(kernel(1), pace=replace(PACE, launch_s={"forward": 3.0})).step_s == 3
    assert played(kernel(5), kernel(1), pace=replace(PACE, launch_s={"forward": 1.0})).step_s == 6
    assert (
        played(kernel(1), item(PhaseStart("step")), kernel(1), pace=replace(PACE, launch_s={"step": 3.0})).step_s == 3
    )


def test_the_host_runs_ahead_as_far_as_the_queue_of_launches_goes() -> None:
    """A thousand short kernels behind a long one are issued while it runs; of as many more the rest is waited for."""
    long, launch_s = 2 * QUEUED_LAUNCHES, {"step": 1.0}
    pace = replace(PACE, launch_s=launch_s)
    parts = [item(PhaseStart("step"))]
    queued = played(kernel(long), *parts, *[kernel(0)] * (QUEUED_LAUNCHES // 2), pace=pace)
    assert queued.step_s == long
    more = played(kernel(long), *parts, *[kernel(0)] * (2 * QUEUED_LAUNCHES), pace=pace)
    assert long + QUEUED_LAUNCHES * 0.8 < more.step_s <= long + QUEUED_LAUNCHES * 1.2


def test_the_heads_long_kernels_are_behind_the_blocks_in_forward_and_before_them_in_backward() -> None:
    """Of one piece of work: 987 short kernels of blocks, and a product with the vocabulary and its loss."""
    launch_s = dict.fromkeys(("forward", "backward"), 1.0)
    pace = replace(PACE, launch_s=launch_s, head=Head(7, 13, 900.0), head_launch_s=1.0)
    head = gemm_s(DEVICE, 5, 7, 3) * pace.passes_slower + 900 * pace.passes_slower

    def work(recorder: Recorder) -> None:
        recorder.kernel(0, moved_bytes=910, launches=999)
        recorder.kernel(0, (5, 7, 3), 0, 1)

    forward = played(work, pace=pace)
    backward = played(item(PhaseStart("backward")), work, pace=pace)
    assert forward.step_s == pytest.approx(987 + head, rel=0.03)
    assert backward.step_s == pytest.approx(1000, rel=0.02)
    untold = replace(pace, head=None)
    assert played(work, pace=untold).step_s == pytest.approx(1000, rel=0.02)


def test_copies_share_a_direction_of_the_link_and_those_that_block_hold_the_host() -> None:
    both = played(
        item(HostCopy(0, True, 3, False)), item(HostCopy(1, True, 3, False)), item(HostCopy(2, False, 4, False))
    )
    assert both.step_s == 6
    assert played(item(HostCopy(1, False, 3, True)), kernel(2)).step_s == 5
    assert played(item(HostCopy(1, False, 3, False)), kernel(2)).step_s == 3
    paged = replace(PACE, paged_shares={True: 0.5, False: 0.25})
    times = [played(item(HostCopy(1, is_up, 3, True, is_paged=True)), pace=paged).step_s for is_up in (True, False)]
    assert times == [6, 12]
    assert both.exposed() == {"to device": 6, "to host": 0}


def test_updates_on_the_host_and_drives_take_their_time_beside_each_other() -> None:
    found = played(item(PhaseStart("step")), item(Drive(4, 2)), item(Host(3)), item(DriveWait()), item(Host(1)))
    assert found.step_s == 5
    assert found.passes_s == 0


def test_the_host_makes_new_memory_ready_beside_the_gpu() -> None:
    pace = replace(PACE, mapped_byte_s=1.0)
    assert played(kernel(2), item(PageMapping(3)), kernel(1)).step_s == 3
    assert played(kernel(2), item(PageMapping(3)), kernel(1), pace=pace).step_s == 4


def test_who_waits_for_what_was_read_does_not_wait_for_what_is_written() -> None:
    parts = (item(PhaseStart("step")), item(Drive(2, 0)), item(Drive(0, 9)))
    assert played(*parts, item(DriveWait(writes=False)), item(Host(1))).step_s == 9
    assert played(*parts, item(DriveWait(reads=False)), item(Host(1))).step_s == 10
    assert played(*parts, item(DriveWait()), item(Host(1))).step_s == 10
    [(host_starts)] = [
        one.start_s for one in played(*parts, item(DriveWait(writes=False)), item(Host(1))).spans if one.lane == "host"
    ]
    assert host_starts == 2


def test_nothing_is_said_where_a_rate_is_missing() -> None:
    bare = replace(PACE, copied_bytes_per_s=None, host_bytes_per_s=None, drive_bytes_per_s=None)
    for what in (HostCopy(0, True, 1, False), Host(1), Drive(1, 0)):
        assert replay(written(item(what)), bare) is None


@pytest.mark.parametrize("seed", range(20))
def test_nothing_faster_ever_makes_a_step_slower(seed: int) -> None:
    """Of any step: faster links, kernels, copies, host and drives, one at a time."""
    drawn = random.Random(seed)  # noqa: S311 -- the same steps each time
    trace, rates = written(*_drawn(drawn)), kind_rates("a100")

    def total(pace: Pace) -> float:
        found = known(replay(trace, pace))
        return sum(replayed(found, rates, 1))

    changes: list[dict[str, Any]] = [
        {"call_s": lambda one: one.message_bytes / 2},
        {"byte_s": dict.fromkeys(PACE.byte_s, 0.5)},
        {"launch_s": {}},
        {"copied_bytes_per_s": 2.0},
        {"host_bytes_per_s": 2.0},
        {"drive_bytes_per_s": 2.0},
        {"mapped_byte_s": 0.1},
    ]
    for changed in changes:
        slow = replace(PACE, launch_s={"forward": 0.2}, mapped_byte_s=0.3)
        assert total(replace(slow, **changed)) <= total(slow) + 1e-9
    found = known(replay(trace, PACE))
    assert found.step_s >= max(found.total_s("compute") / 3, found.total_s("communication"))


def _drawn(drawn: random.Random) -> list[Write]:
    parts, calls, events = [], 0, 0
    for _ in range(60):
        stream, size = drawn.randrange(3), drawn.randrange(1, 9)
        match drawn.randrange(8):
            case 0:
                parts.append(call(size, stream))
                calls += 1
            case 1 if calls:
                parts.append(item(CollectiveWait(stream, drawn.randrange(calls))))
            case 2:
                parts.append(item(EventRecord(stream, events)))
                events += 1
            case 3 if events:
                parts.append(item(EventWait(drawn.choice([0, 1, 2, None]), drawn.randrange(events))))
            case 4:
                parts.append(item(HostCopy(stream, drawn.random() < 0.5, size, drawn.random() < 0.3)))
            case 5:
                parts.append(item(drawn.choice([Host(size), Drive(size, 1), DriveWait(), PageMapping(size)])))
            case _:
                parts.append(kernel(size, stream))
    return parts
