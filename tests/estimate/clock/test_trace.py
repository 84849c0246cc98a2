"""A step's issue order as it is taken down and kept."""

import base64
import json
import zlib

import pytest

from tests.tools.known import known
from zerobench.estimate.clock.trace import (
    Call,
    CollectiveWait,
    Drive,
    DriveWait,
    EventWait,
    Host,
    HostCopy,
    Kernels,
    PhaseStart,
    Recorder,
    StepTrace,
    Work,
    unpack,
)


def recorder() -> Recorder:
    made = Recorder()
    made.add(PhaseStart("forward"))
    for _ in range(2):
        number = made.call(1, "all_gather", 8, 1, 1000)
        made.kernel(0, (4, 5, 6))
        made.kernel(0, (4, 5, 6), count=2)
        made.kernel(0, moved_bytes=70)
        made.attention(0, 80, is_backward=True)
        made.add(CollectiveWait(0, number))
    made.add(Host(5))
    made.add(Host(6))
    made.add(HostCopy(0, True, 9, False))
    made.add(EventWait(None, None))
    return made


def test_kernels_between_two_waits_are_one_piece_of_work_and_equal_pieces_are_kept_once() -> None:
    trace = known(recorder().trace())
    assert trace.works == (Work((((4, 5, 6), 3),), (0, 80), 70, 4),)
    assert [item for item in trace.items if isinstance(item, Kernels)] == [Kernels(0, 0), Kernels(0, 0)]
    assert [item.message_bytes for item in trace.items if isinstance(item, Call)] == [1000, 1000]
    assert Host(11) in trace.items


def test_work_on_another_stream_is_another_piece() -> None:
    made = Recorder()
    made.kernel(0, moved_bytes=1)
    made.kernel(1, moved_bytes=1)
    made.kernel(0, moved_bytes=1)
    trace = known(made.trace())
    assert trace.items == (Kernels(0, 0), Kernels(1, 0), Kernels(0, 0))


def test_a_trace_reads_back_as_it_was() -> None:
    trace = known(recorder().trace())
    assert unpack(trace.pack()) == trace
    assert Recorder().trace() is None


def test_a_record_that_does_not_say_what_of_the_drives_is_awaited_waits_for_all() -> None:
    trace = StepTrace((), (Drive(1, 2), DriveWait()))
    plain = [[], [[7, 1, 2], [8]]]
    assert unpack(base64.b64encode(zlib.compress(json.dumps(plain).encode())).decode()) == trace


@pytest.mark.parametrize("text", ["no base64", base64.b64encode(b"not compressed").decode(), "", "eJyLjgUAARUAuQ=="])
def test_what_is_no_trace_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no trace of a step"):
        unpack(text)


def test_no_trace_makes_memory_run_out() -> None:
    bomb = base64.b64encode(zlib.compress(b"[" * (100 << 20), 9)).decode()
    with pytest.raises(ValueError, match="no trace of a step"):
        unpack(bomb)


@pytest.mark.parametrize("messages", [False, True])
def test_larger_micro_batches_have_more_tokens_in_one_dimension_and_update_as_before(messages: bool) -> None:
    made = recorder()
    made.add(PhaseStart("step"))
    made.kernel(0, moved_bytes=90)
    made.call(0, "all_gather", 8, 1, 500)
    trace = known(made.trace())
    larger = trace.of_more_tokens(5, 3, messages=messages)
    works = [(phase, larger.works[item.work]) for phase, item in larger.in_phases() if isinstance(item, Kernels)]
    grown = Work((((4, 15, 6), 3),), (0, 240), 210, 4)
    assert works == [("forward", grown), ("forward", grown), ("step", Work((), (0, 0), 90, 1))]
    calls = [item.message_bytes for item in larger.items if isinstance(item, Call)]
    assert calls == ([3000, 3000, 500] if messages else [1000, 1000, 500])
    apart = trace.of_more_tokens(7, 2, messages=False)
    assert apart.works[-2].products == (((4, 5, 6), 6),), "products of a part of the tokens are more of them"
