"""A record's time is on the runner's clock, whatever the clock of the node or of the file server says."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tools.known import known
from tests.tools.rank_records import rank_of_two
from zerobench.common.vocabulary import Status
from zerobench.launch.run.outcome import Ending, classify
from zerobench.launch.run.ranks import RankDeath
from zerobench.launch.run.record_times import written_at_s
from zerobench.records.folder import TrialFolder

BEGAN_S = 1_000_000.0
HOUR_S = 3600.0

Put = Callable[[int, float], Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Writes the record of a rank with a modification time."""

    def one(rank: int, at_s: float) -> Path:
        path = TrialFolder(tmp_path).rank_record(rank)
        path.write_text("{}")
        os.utime(path, (at_s, at_s))
        return path

    return one


def test_a_time_that_can_be_true_is_believed_though_the_record_was_seen_late(tmp_path: Path, put: Put) -> None:
    path = put(0, BEGAN_S + 10)
    assert written_at_s(TrialFolder(tmp_path), [0], BEGAN_S, {path: BEGAN_S + 40}) == {0: BEGAN_S + 10}


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S])
def test_a_time_of_a_wrong_clock_is_that_at_which_the_record_was_seen(tmp_path: Path, put: Put, ahead_s: float) -> None:
    path = put(0, BEGAN_S + 10 + ahead_s)
    assert written_at_s(TrialFolder(tmp_path), [0], BEGAN_S, {path: BEGAN_S + 10.2}) == {0: BEGAN_S + 10.2}


def test_a_record_that_nobody_saw_while_the_trial_ran_is_as_old_as_its_reading_at_most(
    tmp_path: Path, put: Put
) -> None:
    before = time.time()
    put(0, before + HOUR_S)
    assert before <= written_at_s(TrialFolder(tmp_path), [0], BEGAN_S, {})[0] <= time.time()


@pytest.mark.parametrize("ahead_s", [0.0, HOUR_S, -HOUR_S])
def test_the_first_failure_is_the_first_one_on_whatever_clock_its_node_runs(
    tmp_path: Path, put: Put, ahead_s: float
) -> None:
    """Rank 1 failed first, on a node with that clock; then rank 0 recorded its own, then rank 2 was killed."""
    paths = {1: put(1, BEGAN_S + 10 + ahead_s), 0: put(0, BEGAN_S + 20)}
    seen = {paths[1]: BEGAN_S + 10.25, paths[0]: BEGAN_S + 20.25}
    ending = Ending(
        3,
        exit_code=1,
        records=[rank_of_two(0, Status.CRASH, "fell with it"), rank_of_two(1, Status.CRASH, "the cause")],
        written_at_s=written_at_s(TrialFolder(tmp_path), paths, BEGAN_S, seen),
        deaths=(RankDeath(2, BEGAN_S + 30, -signal.SIGKILL),),
    )
    failure = known(classify(ending)[1])
    assert (failure.rank, failure.message) == (1, "rank 1: the cause")
