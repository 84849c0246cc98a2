"""Temporary files are removed once their writer is dead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zerobench.common.temporary_files import remove_leftovers, temporary_name

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
    monkeypatch.setattr("zerobench.common.temporary_files._this_machine", lambda: "0123")
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


def test_the_temporary_file_of_another_users_process_that_lives_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be signalled, and so it is there."""

    def refuse(_pid: int, _number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    path = tmp_path / f".record.json.{DEAD}.tmp"
    path.touch()
    monkeypatch.setattr(os, "kill", refuse)
    assert remove_leftovers(tmp_path) == []
    assert path.exists()


def test_what_cannot_be_removed_is_left_and_the_others_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (tmp_path / f".{name}.{DEAD}.tmp" for name in ("a", "b"))
    first.touch()
    second.touch()
    unlink = Path.unlink

    def some(path: Path, *args: bool, **kwargs: bool) -> None:
        if path == first:
            raise PermissionError(1, "Operation not permitted")
        unlink(path, *args, **kwargs)

    monkeypatch.setattr(Path, "unlink", some)
    assert remove_leftovers(tmp_path) == [second]
    assert first.exists()
