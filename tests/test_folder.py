"""Files of a run are put in place whole or not at all."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from zerobench.errors import UserError
from zerobench.folder import check_writable, write_pieces, write_whole


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
