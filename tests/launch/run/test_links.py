"""A run that somebody sent writes nowhere but in its own folder when it goes on."""

import os
from pathlib import Path

import pytest

from zerobench.common.errors import UserError
from zerobench.launch.run.links import refuse_links
from zerobench.launch.run.lock import locked, trial_locked
from zerobench.records.folder import RunFolder


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
