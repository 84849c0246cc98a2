"""Files of a run are put in place whole or not at all."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from zerobench.common.errors import UserError
from zerobench.common.file_errors import failure_of, naming
from zerobench.common.temporary_files import replacing
from zerobench.records.folder import (
    RunFolder,
    TrialFolder,
    check_writable,
    remove_outside,
    write_pieces,
    write_whole,
    writing,
)


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "record.json").write_text("old")
    monkeypatch.setattr(os if failing == "fsync" else Path, failing, full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "record.json", "new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"record.json": "old"}


def test_a_pipe_that_somebody_names_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    """As /dev/stdout and /dev/null, which root would else replace by a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_pieces(pipe, ["a", "b"])
    assert os.read(reader, 9) == b"ab"
    os.close(reader)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("-", "standard output has the tables already"),
        ("no/such/report.md", "its folder does not exist"),
        (".", "exist"),
    ],
)
def test_a_file_that_work_would_end_in_is_refused_before_it_begins(path: str, why: str) -> None:
    with pytest.raises(UserError, match=f"--markdown: {re.escape(path)}: .*{why}"):
        check_writable("--markdown", Path(path))


def test_an_error_of_a_write_names_the_file_that_was_asked_for_and_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for failing in (naming(path), replacing(path)):
        with pytest.raises(OSError, match="No space left") as caught, failing:
            raise OSError(errno.ENOSPC, "Disk [errno 28]")
        remedy = "free space there, or write elsewhere (--out, --reports)"
        assert failure_of(caught.value) == f"{path}: No space left on device; {remedy}"


def test_the_name_of_a_temporary_file_is_not_what_a_person_is_told(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "record.json"
    with pytest.raises(FileNotFoundError) as caught:
        write_whole(path, "text")
    assert caught.value.filename == str(path)


def test_an_option_is_told_with_the_file_inside_of_its_folder_that_had_no_room(tmp_path: Path) -> None:
    inside = tmp_path / "run" / "plan.json"
    with pytest.raises(UserError) as caught, writing(f"--reports: {tmp_path}"), naming(inside):
        raise OSError(errno.EFBIG, "File too large")
    assert str(caught.value) == (
        f"--reports: {tmp_path}: cannot be written: {inside}: File too large; raise the limit of a file's size "
        "(ulimit -f), or write elsewhere (--out, --reports)"
    )


def test_rank_records_are_those_that_are_whole_by_the_number_of_their_rank(tmp_path: Path) -> None:
    """The tenth comes after the ninth, and not after the first."""
    folder = TrialFolder(tmp_path)
    assert TrialFolder(tmp_path / "nothing").rank_records() == []
    for rank in (10, 2, 0, 9, 1, 100):
        folder.rank_record(rank).touch()
    for name in (".rank_3.json.7.tmp", "progress_4.json", "memory_course_5.json", "rank_6.txt"):
        (tmp_path / name).touch()
    assert folder.rank_records() == [folder.rank_record(rank) for rank in (0, 1, 2, 9, 10, 100)]
    assert TrialFolder(folder.rank_record(0)).rank_records() == []  # a file, and no folder


def test_summaries_of_the_sampler_are_in_the_order_of_their_nodes(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path)
    for node in (10, 0, 2):
        folder.nvml_summary(node).touch()
        folder.nvml_samples(node).touch()
    assert folder.nvml_summaries() == [folder.nvml_summary(node) for node in (0, 2, 10)]
    assert (folder.nvml_summary("host-1").name, folder.nvml_samples(3).name) == ("nvml_host-1.json", "nvml_node3.csv")
    assert folder.host_samples(3).name == "host_node3.csv"


def test_exit_statuses_are_found_and_nothing_else(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path)
    for path in (folder.rank_exit(1), folder.rank_exit(0), folder.stdout, folder.stacks(0)):
        path.touch()
    assert folder.rank_exits() == [folder.rank_exit(0), folder.rank_exit(1)]


def test_what_a_trial_keeps_elsewhere_is_its_own_of_its_run_and_of_both_launches(tmp_path: Path) -> None:
    """Two runs of a name under different folders are two."""
    one, other = (RunFolder(tmp_path / name / "stages_1") for name in ("a", "b"))
    places = [run.trial(trial).outside("/scratch", trial) for run in (one, other) for trial in ("x", "y")]
    assert len(set(places)) == 4
    assert {str(place.parent.parent) for place in places} == {"/scratch"}
    assert places[0].parent == places[1].parent
    assert re.fullmatch(r"stages_1-[0-9a-f]{8}", places[0].parent.name)
    assert one.trial("x").resumed.outside("/scratch", "x") == places[0]


def test_what_lies_elsewhere_goes_with_the_folder_of_its_run_once_that_is_empty(tmp_path: Path) -> None:
    for trial in ("x", "y"):
        (tmp_path / "run" / trial).mkdir(parents=True)
        (tmp_path / "run" / trial / "file").touch()
    remove_outside(tmp_path / "run" / "x")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["y"]
    remove_outside(tmp_path / "run" / "y")
    assert list(tmp_path.iterdir()) == []
    remove_outside(tmp_path / "run" / "y")  # nothing is there
