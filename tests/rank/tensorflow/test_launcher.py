"""The line between coordinator and workers: who waits for whom, and what happens when one is gone."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import AuthenticationError

import pytest

from zerobench.launch.run.launcher import free_port
from zerobench.rank.tensorflow.launcher import CoordinatorsEnd, WorkersEnd

KEY = b"drawn"


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def test_nobody_goes_on_before_all_have_come_and_all_are_told_the_same(port: int, threads: ThreadPoolExecutor) -> None:
    calls = [threads.submit(WorkersEnd, port, KEY) for _ in range(2)]
    coordinator = CoordinatorsEnd(port, KEY, 2)
    first, second = (call.result(10) for call in calls)
    early = threads.submit(first.wait)
    gathered = threads.submit(coordinator.gather)
    assert not early.done()
    assert not gathered.done()
    late = threads.submit(second.wait)
    gathered.result(10)
    coordinator.tell(b"losses")
    assert (early.result(10), late.result(10)) == (b"losses", b"losses")


def test_a_worker_calls_until_the_coordinator_answers(port: int, threads: ThreadPoolExecutor) -> None:
    called = threads.submit(WorkersEnd, port, KEY)
    assert not called.done()
    CoordinatorsEnd(port, KEY, 1)
    called.result(10)


def test_whoever_does_not_know_the_key_is_not_listened_to(port: int, threads: ThreadPoolExecutor) -> None:
    stranger = threads.submit(WorkersEnd, port, b"guessed")
    with pytest.raises(AuthenticationError):
        CoordinatorsEnd(port, KEY, 1)
    with pytest.raises(AuthenticationError):
        stranger.result(10)


def test_a_side_that_is_gone_is_an_error_and_not_a_wait(port: int, threads: ThreadPoolExecutor) -> None:
    called = threads.submit(WorkersEnd, port, KEY)
    coordinator = CoordinatorsEnd(port, KEY, 1)
    called.result(10)._coordinator.close()
    with pytest.raises((EOFError, OSError)):
        coordinator.gather()
