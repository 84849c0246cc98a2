"""Who may work in a run folder: one alone, or several that hold a trial each."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

import pytest

from zerobench.common.errors import UserError
from zerobench.launch.run.lock import locked, shared, trial_locked
from zerobench.records.folder import RunFolder, TrialFolder


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
