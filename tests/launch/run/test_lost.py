"""Trials whose runner left no word: closed by what can still be known, and set aside before they run again."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tools.known import known
from tests.tools.laid_out import laid_out
from tests.tools.rank_records import rank_record
from zerobench.common.vocabulary import Status
from zerobench.config.trial.checkpoint import CheckpointSpec
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.executor import Interruption, LocalExecutor
from zerobench.launch.run.lost import close, is_begun, renew
from zerobench.records.folder import TrialFolder
from zerobench.records.records import Start, TrialRecord
from zerobench.records.store import Run, load_run, read_record

MakeTrial = Callable[..., TrialSpec]
START = Start(trial_id="x", started_at_s=1000.0, runner="process 7 on n1", nodes=["n1"], job="41_3")


class LostExecutor(LocalExecutor):
    """Knows that a job was preempted."""

    def lost(self, start: Start | None) -> Interruption:
        return Interruption(Status.PREEMPTED, f"preempted: {start.job if start else None}", "Slurm says")


EXECUTOR = LostExecutor(2, 0)


@pytest.fixture
def run(tmp_path: Path, make_trial: MakeTrial) -> Run:
    """Two trials with two ranks each, neither begun."""
    return load_run(laid_out(tmp_path / "a_run", [make_trial(name) for name in ("first", "second")]).path)


def first(run: Run) -> tuple[TrialSpec, TrialFolder]:
    trial_id = run.plan.trials[0].trial_id
    return run.spec(trial_id), run.folder.trial(trial_id)


def begin(folder: TrialFolder, statuses: dict[int, Status] | None = None) -> None:
    """Leave what a trial leaves whose runner was killed, with the records of some of its ranks."""
    folder.command.write_text("srun\n")
    folder.start.write_text(START.model_dump_json())
    for rank, status in (statuses or {}).items():
        record = rank_record(folder.path.name, rank, world_size=2, hostname="n1", status=status)
        folder.rank_record(rank).write_text(record.model_dump_json())


def test_a_trial_is_begun_from_its_first_file_on(run: Run) -> None:
    _, folder = first(run)
    assert not is_begun(folder)
    folder.command.write_text("srun\n")
    assert is_begun(folder)
    folder.command.unlink()
    folder.start.write_text(START.model_dump_json())
    assert is_begun(folder)


def test_a_trial_that_was_cut_short_ends_as_the_executor_knows_with_where_it_ran(run: Run) -> None:
    trial, folder = first(run)
    begin(folder, {0: Status.COMPLETED})
    os.utime(folder.rank_record(0), (4000.0, 4000.0))
    for path in (folder.command, folder.start, folder.spec):
        os.utime(path, (1000.0, 1000.0))
    record = close(run, trial, folder, EXECUTOR.lost)
    assert record == read_record(folder.record, TrialRecord)
    assert (record.status, record.reason) == (Status.PREEMPTED, "preempted: 41_3")
    assert record.failure is not None
    assert record.failure.evidence == "Slurm says"
    assert (record.job, record.nodes, record.ranks_reported, record.ranks_expected) == ("41_3", ["n1"], 1, 2)
    assert (record.started_at_s, record.ended_at_s) == (1000.0, 4000.0)


def test_a_trial_ended_no_later_than_now_whatever_clock_the_file_system_has(run: Run) -> None:
    trial, folder = first(run)
    begin(folder)
    os.utime(folder.command, (time.time() + 3600.0,) * 2)
    ended_at_s = close(run, trial, folder, EXECUTOR.lost).ended_at_s
    assert known(ended_at_s) <= time.time()


def test_a_trial_whose_ranks_had_all_completed_did_complete(run: Run) -> None:
    trial, folder = first(run)
    begin(folder, {0: Status.COMPLETED, 1: Status.COMPLETED})
    record = close(run, trial, folder, EXECUTOR.lost)
    assert (record.status, record.failure, record.reason) == (Status.COMPLETED, None, None)


def test_a_rank_that_failed_does_not_make_it_complete(run: Run) -> None:
    trial, folder = first(run)
    begin(folder, {0: Status.COMPLETED, 1: Status.CRASH})
    assert close(run, trial, folder, EXECUTOR.lost).status is Status.PREEMPTED


def test_a_torn_word_of_its_start_is_none(run: Run) -> None:
    trial, folder = first(run)
    folder.start.write_text('{"trial_id": "x", "star')
    record = close(run, trial, folder, EXECUTOR.lost)
    assert (record.reason, record.job, record.nodes, record.started_at_s) == ("preempted: None", None, [], None)


def test_a_trial_that_was_not_begun_is_left_as_it_is(run: Run) -> None:
    trial, folder = first(run)
    renew(run, trial, folder, EXECUTOR)
    assert not (run.folder.path / "set_aside").exists()


def test_what_an_attempt_left_is_set_aside_typed_and_its_place_is_fresh(run: Run) -> None:
    trial, folder = first(run)
    for number in (1, 2):
        begin(folder, {0: Status.COMPLETED})
        (folder.path / "logs").mkdir()
        renew(run, trial, folder, EXECUTOR)
        assert [path.name for path in folder.path.iterdir()] == ["trial.json"]
        aside = TrialFolder(run.folder.path / f"set_aside/{folder.path.name}.{number}")
        assert read_record(aside.record, TrialRecord).status is Status.PREEMPTED
        assert {"trial.json", "cmd.txt", "start.json", "rank_0.json", "logs"} < {p.name for p in aside.path.iterdir()}


def test_an_attempt_that_has_a_record_keeps_it(run: Run) -> None:
    trial, folder = first(run)
    begin(folder)
    written = close(run, trial, folder, lambda _: Interruption(Status.TIMEOUT, "the time limit came"))
    renew(run, trial, folder, EXECUTOR)
    aside = TrialFolder(run.folder.path / f"set_aside/{folder.path.name}.1")
    assert read_record(aside.record, TrialRecord) == written


def test_a_trial_that_was_to_be_resumed_is_not_complete_after_its_first_launch(run: Run) -> None:
    trial, folder = first(run)
    trial = trial.model_copy(update={"checkpoint": CheckpointSpec(every_steps=2)})
    begin(folder, dict.fromkeys(range(trial.world_size), Status.COMPLETED))
    assert close(run, trial, folder, EXECUTOR.lost).status is Status.PREEMPTED
