"""Temporary files are removed once their writer is dead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zerobench.common.leftovers import remove_leftovers, temporary_name

DEAD = 999_999_999
"""More than the kernel gives out."""


@pytest.mark.parametrize(
    ("name", "is_left_over"),
    [
        (f".memory.parquet.{DEAD}.tmp", True),
        (f".record.json.{DEAD}.0123abcd.tmp", True),
        (".memory.parquet.{own}.tmp", False),
        (".record.json.{own}.0123abcd.tmp", False),
        (f".record.json.{DEAD}.ffff-0123abcd.tmp", False),  # another machine's
        (f"record.json.{DEAD}.tmp", False),
        (".hidden.tmp", False),
        (f".record.json.{DEAD}", False),
    ],
)
def test_only_the_temporary_files_of_dead_processes_of_this_machine_are_left_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, *, is_left_over: bool
) -> None:
    monkeypatch.setattr("zerobench.common.leftovers._this_machine", lambda: "0123")
    path = tmp_path / name.format(own=os.getpid())
    path.touch()
    assert remove_leftovers(tmp_path) == [path] * is_left_over
    assert path.exists() is not is_left_over


def test_what_a_killed_process_of_this_machine_left_is_known_by_its_name(tmp_path: Path) -> None:
    names = [temporary_name(tmp_path / "a file.json"), temporary_name(tmp_path / "folder")]
    names[0].touch()
    assert remove_leftovers(tmp_path) == []
    dead = [path.with_name(path.name.replace(f".{os.getpid()}.", f".{DEAD}.")) for path in names]
    dead[0].touch()
    (dead[1] / "inside").mkdir(parents=True)
    assert remove_leftovers(tmp_path) == sorted(dead)
    assert list(tmp_path.iterdir()) == [names[0]]


def test_those_below_are_removed_on_request(tmp_path: Path) -> None:
    left = tmp_path / "trials" / "one" / f".record.json.{DEAD}.tmp"
    left.parent.mkdir(parents=True)
    left.touch()
    assert remove_leftovers(tmp_path) == []
    assert remove_leftovers(tmp_path, is_whole=True) == [left]
