"""Signals that ask the runner to stop, as a flag."""

import os
import signal
import threading

import pytest

from zerobench.launch.run.stop import Stop, stop_on_signals

ASKING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(params=ASKING, ids=[number.name for number in ASKING])
def number(request: pytest.FixtureRequest):
    before = signal.getsignal(request.param)
    yield request.param
    signal.signal(request.param, before)


def test_a_signal_sets_the_flag_and_its_handler_comes_back(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_DFL)
    with stop_on_signals() as stop:
        assert not stop.asked
        os.kill(os.getpid(), number)
        assert stop.asked
        assert stop.signal is number
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_signal_that_the_caller_ignores_stays_ignored_as_under_nohup(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_IGN)
    with stop_on_signals() as stop:
        assert signal.getsignal(number) is signal.SIG_IGN
        os.kill(os.getpid(), number)
        assert not stop.asked
    assert signal.getsignal(number) is signal.SIG_IGN


def test_further_signals_are_taken_where_they_are_named() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with stop_on_signals(signal.SIGUSR1) as stop:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop.signal is signal.SIGUSR1
    assert signal.getsignal(signal.SIGUSR1) == before


def test_outside_of_the_main_thread_only_ask_sets_it() -> None:
    seen: list[Stop] = []

    def hold() -> None:
        with stop_on_signals() as stop:
            stop.ask(signal.SIGTERM)
            seen.append(stop)

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert [stop.signal for stop in seen] == [signal.SIGTERM]
