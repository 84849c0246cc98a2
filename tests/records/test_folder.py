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
from zerobench.records.folder import check_writable, write_pieces, write_whole, writing


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
