"""One simulator for all tests of a process that ask what a trial comes to, and not how a simulator begins or is lost
(tests/launch/run/test_simulators.py): its imports take some five seconds, and most trials one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Self

import pytest

from benchmarks.prediction import simulated
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.launch.run import simulations
from zerobench.launch.run.simulator import Simulator
from zerobench.records.records import RankRecord

Kept = Callable[[], AbstractContextManager[None]]
Simulate = Callable[[Sequence[TrialSpec]], list[RankRecord]]
JOBS = 2


class _KeptSimulator(Simulator):
    """Goes on when whoever used it has done."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """What ends it is the fixture."""

    def end(self) -> int:
        return super().end() if self.is_gone else 0


@pytest.fixture(scope="session")
def kept_simulator() -> Iterator[Kept]:
    """Within what it returns, simulated trials are played by the one that is kept. It knows the environment of the
    first test that asked: a test that changes what trials read of it starts its own.
    """
    kept = _KeptSimulator(JOBS, Evidence.SIMULATED, {})
    Simulator.__enter__(kept)

    @contextmanager
    def within() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(simulations, "Simulator", lambda *_: kept)
            yield

    yield within
    Simulator.end(kept)
    Simulator.__exit__(kept, None, None, None)


@pytest.fixture(scope="session")
def simulate(kept_simulator: Kept) -> Simulate:
    """The records of trials, in their order."""

    def play(trials: Sequence[TrialSpec]) -> list[RankRecord]:
        with kept_simulator():
            return simulated.simulate(trials, JOBS)

    return play
