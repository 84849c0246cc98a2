"""How ranks of other nodes ended, which only what started them could see: they left it in a file."""

import os
import time
from pathlib import Path

import pytest

from zerobench.launch.run.ranks import RankDeath, RankWatch
from zerobench.records.folder import TrialFolder


def look(folder: TrialFolder) -> dict[int, RankDeath]:
    watch = RankWatch(folder, os.getpid())
    watch.look()
    return watch.deaths


@pytest.mark.parametrize(("text", "code"), [("0\n", 0), ("3\n", 3), ("137\n", -9), ("143\n", -15), ("128\n", 128)])
def test_a_shells_status_is_read_as_what_ended_the_rank(tmp_path: Path, text: str, code: int) -> None:
    folder = TrialFolder(tmp_path)
    folder.rank_exit(3).write_text(text)
    assert look(folder)[3].exit_code == code


@pytest.mark.parametrize("text", ["", "three\n"])
def test_what_is_no_status_is_passed_over(tmp_path: Path, text: str) -> None:
    folder = TrialFolder(tmp_path)
    folder.rank_exit(0).write_text(text)
    assert look(folder) == {}


def test_the_first_word_of_a_ranks_end_stays(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path)
    watch = RankWatch(folder, os.getpid())
    folder.rank_exit(1).write_text("3\n")
    watch.look()
    first = watch.deaths[1]
    time.sleep(0.02)
    folder.rank_exit(1).write_text("143\n")
    watch.look()
    assert watch.deaths == {1: first}
    assert first.exit_code == 3
