"""Who may work in a run folder: one alone, or several that hold a trial each."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from zerobench.common.errors import UserError
from zerobench.launch.run.lock import locked, refuse_links, shared, trial_locked
from zerobench.records.folder import RunFolder, TrialFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "a_run")
    (run.trial("first").path / "logs").mkdir(parents=True)
    return run


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A file of the user's own, outside."""
    path = tmp_path / "theirs.txt"
    path.write_text("precious")
    return path


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_lock_that_is_a_link_is_refused_and_its_target_stays(run: RunFolder, theirs: Path, link) -> None:
    link(theirs, run.path / ".lock")
    link(theirs, run.trial("first").lock)
    with pytest.raises(UserError, match=r"^RUN: .*/\.lock is a link or not a regular file"):
        locked(run).__enter__()
    with pytest.raises(UserError, match=r"^RUN: .*/first/\.lock is a link or not a regular file"):
        trial_locked(run.trial("first")).__enter__()
    assert theirs.read_text() == "precious"


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_lock_that_is_no_plain_file_is_refused_at_once(run: RunFolder, make) -> None:
    make(run.path / ".lock")
    with pytest.raises(UserError, match=r"not a regular file"):
        locked(run).__enter__()


@pytest.mark.parametrize(
    "place", ["stdout.txt", "set_aside", "trials/first/stdout.txt", "trials/first/logs/rank.log", "trials/second"]
)
def test_a_link_out_of_the_run_is_refused_by_name(run: RunFolder, theirs: Path, place: str) -> None:
    (run.path / place).symlink_to(theirs)
    with pytest.raises(UserError, match=rf"^RUN: .*/{place} is a link out of the run folder \(.*theirs\.txt\)"):
        refuse_links(run, ["first"])


def test_links_within_the_run_and_in_trials_that_stay_are_left_alone(run: RunFolder, theirs: Path) -> None:
    (run.path / "latest").symlink_to(run.trial("first").path)
    run.trial("second").path.mkdir()
    (run.trial("second").path / "notes").symlink_to(theirs)
    refuse_links(run, ["first", "not_made_yet"])


def test_jobs_share_a_run_and_nobody_has_it_alone_meanwhile(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    with shared(run), shared(run), pytest.raises(UserError, match=r"is in use by another zerobench \(process \d+ on"):
        locked(run).__enter__()
    with locked(run):
        pass


def test_who_has_a_run_alone_shares_it_with_no_job(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    with locked(run), pytest.raises(UserError, match="is in use by another zerobench"):
        shared(run).__enter__()


def test_a_trial_is_had_by_one_and_then_by_the_next(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path)
    with trial_locked(folder) as is_mine, trial_locked(folder) as is_its:
        assert (is_mine, is_its) == (True, False)
    with trial_locked(folder) as is_mine:
        assert is_mine


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_on_a_file_system_without_locks_jobs_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(_descriptor: int, _how: int) -> None:
        raise OSError(code, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with shared(RunFolder(tmp_path)), trial_locked(TrialFolder(tmp_path / "..")) as is_mine:
        assert is_mine


def test_any_other_fault_of_the_file_system_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_descriptor: int, _how: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(OSError, match="Input/output error"):
        shared(RunFolder(tmp_path)).__enter__()
