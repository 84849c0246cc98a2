"""Files of a run are put in place whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zerobench.folder import write_whole


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
