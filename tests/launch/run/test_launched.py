"""How long a trial may go on: as long as one of its ranks does. The processes are real, and say what a rank says."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.tools.rank_records import progress
from zerobench.launch.run.executor import Launch
from zerobench.launch.run.launched import LaunchedTrial
from zerobench.launch.run.launcher import MARK
from zerobench.launch.run.outcome import Stopped
from zerobench.launch.run.stop import Stop
from zerobench.records.folder import TrialFolder
from zerobench.records.progress import Progress

TIMEOUT_S = 2.0
SAID_EVERY_S = 0.5


def words(rank: int, folder: Path, count: int) -> str:
    """A shell's commands that say `count` times that `rank` has ended one more step."""
    text, path = shlex.quote(progress(rank).model_dump_json()), shlex.quote(str(TrialFolder(folder).progress(rank)))
    say = f'echo {text} | sed s/index.:0/index\\":$step/ > {path}.new && mv {path}.new {path}'
    return f"for step in $(seq {count}); do {say}; sleep {SAID_EVERY_S}; done"


def wait_for(script: str, folder: Path) -> tuple[Stopped | None, Sequence[Progress]]:
    """How a trial whose launcher is the shell script `script` ended, and the last words of its ranks."""
    launched = LaunchedTrial(Launch(["sh", "-c", script], {MARK: str(folder)}), TrialFolder(folder))
    with launched:
        stopped = launched.wait(Stop(), TIMEOUT_S, 2, 60.0, lambda _: None)
        return stopped, launched.watch.look()


def test_a_trial_whose_ranks_go_on_is_not_ended_however_long_it_takes(tmp_path: Path) -> None:
    began_s = time.monotonic()
    stopped, [last] = wait_for(words(0, tmp_path, 8), tmp_path)
    assert time.monotonic() - began_s > 1.5 * TIMEOUT_S
    assert (stopped, last.step_index) == (None, 8)


def test_one_rank_that_goes_on_is_enough(tmp_path: Path) -> None:
    stopped, last = wait_for(f"{words(0, tmp_path, 1)}; {words(1, tmp_path, 6)}", tmp_path)
    assert stopped is None
    assert [rank.step_index for rank in last] == [1, 6]


@pytest.mark.parametrize("count", [0, 3])
def test_a_trial_of_which_no_rank_goes_on_is_ended_after_the_limit(tmp_path: Path, count: int) -> None:
    began_s = time.monotonic()
    stopped, last = wait_for(f"{words(0, tmp_path, count)}; sleep 600", tmp_path)
    spent_s = time.monotonic() - began_s
    assert stopped is Stopped.TIMEOUT
    assert [rank.step_index for rank in last] == [count] * bool(count)
    latest_s = max(0, count - 1) * SAID_EVERY_S
    assert latest_s + TIMEOUT_S <= spent_s < latest_s + TIMEOUT_S + 5


def test_a_word_said_again_as_it_was_is_no_progress(tmp_path: Path) -> None:
    again = f"touch {shlex.quote(str(TrialFolder(tmp_path).progress(0)))}"
    script = f"{words(0, tmp_path, 1)}; for i in $(seq 60); do {again}; sleep {SAID_EVERY_S}; done"
    stopped, _ = wait_for(script, tmp_path)
    assert stopped is Stopped.TIMEOUT


SETTLE_S = 3.0


def record_written(rank: int, folder: Path, text: str) -> str:
    """A shell's commands that leave `text` as the record of `rank`, whole at once."""
    path = shlex.quote(str(TrialFolder(folder).rank_record(rank)))
    return f"echo {shlex.quote(text)} > {path}.new && mv {path}.new {path}"


def settled(script: str, folder: Path, ranks_expected: int = 2) -> tuple[Stopped | None, float]:
    """How and after how many seconds a trial ended whose launcher has `SETTLE_S` once nothing more can come."""
    began_s = time.monotonic()
    launch = Launch(["sh", "-c", script], {MARK: str(folder)})
    with LaunchedTrial(launch, TrialFolder(folder)) as launched:
        stopped = launched.wait(Stop(), 5.0, ranks_expected, SETTLE_S, lambda _: None)
        return stopped, time.monotonic() - began_s


@pytest.mark.parametrize("text", ['{"status": "crash"}', "torn", "[]"])
def test_a_launcher_that_outlives_a_failed_rank_is_ended_after_its_time_from_the_first_record(
    tmp_path: Path, text: str
) -> None:
    """The records of other ranks, which come later, begin no new time; one that cannot be read is of a failed rank."""
    later = record_written(1, tmp_path, '{"status": "completed"}')
    stopped, spent_s = settled(f"{record_written(0, tmp_path, text)}; sleep 2.5; {later}; sleep 600", tmp_path)
    assert stopped is Stopped.SETTLED
    assert SETTLE_S <= spent_s < SETTLE_S + 2


def test_a_launcher_that_outlives_ranks_that_completed_is_ended_after_its_time_from_the_last_record(
    tmp_path: Path,
) -> None:
    first, last = (record_written(rank, tmp_path, '{"status": "completed"}') for rank in (0, 1))
    stopped, spent_s = settled(f"{first}; sleep 1; {last}; sleep 600", tmp_path)
    assert stopped is Stopped.SETTLED
    assert SETTLE_S + 1 <= spent_s < SETTLE_S + 3


def test_a_trial_of_which_a_rank_is_still_to_come_is_not_settled(tmp_path: Path) -> None:
    first = record_written(0, tmp_path, '{"status": "completed"}')
    assert settled(f"{first}; sleep 4", tmp_path)[0] is None


def test_a_trial_that_is_asked_to_stop_is_ended_at_once(tmp_path: Path) -> None:
    stop = Stop()
    stop.ask()
    with LaunchedTrial(Launch(["sleep", "600"], {MARK: str(tmp_path)}), TrialFolder(tmp_path)) as launched:
        assert launched.wait(stop, 60.0, 1, 60.0, lambda _: None) is Stopped.INTERRUPTED
        [process] = launched.members()
    assert not process.is_running() or process.status() == "zombie"
