"""What a rank says of itself while it runs."""

from pathlib import Path

import pytest

from tests.tools.known import known
from zerobench.common.vocabulary import Category
from zerobench.records.folder import TrialFolder
from zerobench.records.progress import Progress, ProgressFile, Rank, read_progress
from zerobench.records.records import HostStanding

RANK = Rank(rank=5, local_rank=1, world_size=8, hostname="node-1", pid=7, node=1)


@pytest.fixture
def spoken(tmp_path: Path) -> tuple[ProgressFile, TrialFolder]:
    folder = TrialFolder(tmp_path)
    return ProgressFile(folder, RANK, 9), folder


def word(folder: TrialFolder) -> Progress:
    return known(read_progress(folder.progress(5)))


def test_what_becomes_known_goes_out_with_the_next_word_and_is_not_taken_back(
    spoken: tuple[ProgressFile, TrialFolder],
) -> None:
    progress, folder = spoken
    progress.say("import", -1, always=True)
    first = word(folder)
    assert (first.local_rank, first.device_name, first.capacity_bytes, first.peak_by_category) == (1, None, None, {})
    assert (first.memory_bytes, first.tokens_per_s) == (None, None)
    progress.device_name, progress.capacity_bytes = "H100", 80
    progress.peak_by_category, progress.tokens_per_s = {"parameters": 3}, 12.5
    progress.say("timed", 3, 42, always=True)
    progress.say("done", 9, always=True)
    last = word(folder)
    assert (last.phase, last.device_name, last.capacity_bytes) == ("done", "H100", 80)
    assert (last.peak_by_category, last.tokens_per_s, last.memory_bytes) == ({"parameters": 3}, 12.5, 42)


def test_words_that_follow_too_closely_are_not_written(spoken: tuple[ProgressFile, TrialFolder]) -> None:
    progress, folder = spoken
    progress.say("timed", 1, always=True)
    progress.say("timed", 2)
    assert word(folder).step_index == 1


def test_a_word_of_an_older_rank_is_read(tmp_path: Path) -> None:
    path = tmp_path / "progress_0.json"
    old = {"rank": 0, "pid": 1, "hostname": "h", "phase": "timed", "step_index": 1, "num_steps": 9}
    path.write_text(
        Progress(**old, memory_bytes=1, updated_at_s=0.0).model_dump_json(
            include={*old, "memory_bytes", "updated_at_s"}
        )
    )
    said = known(read_progress(path))
    assert said.peak_by_category == {}


def test_what_the_host_holds_goes_out_at_once_with_the_last_word_again(
    spoken: tuple[ProgressFile, TrialFolder],
) -> None:
    progress, folder = spoken
    progress.say("first", 0, 42, always=True)
    standing = HostStanding(at="the peak of start-up", by_category={Category.PARAMETERS: 3})
    progress.tell_host(standing)
    last = word(folder)
    assert (last.phase, last.step_index, last.memory_bytes, last.host_standing) == ("first", 0, 42, standing)
