"""Checkpoints on disk: the last whole one is found, and what it takes is counted."""

import os
from pathlib import Path

import pytest

from tests.report.sample_run import spec
from zerobench.config.trial.checkpoint import CheckpointSpec
from zerobench.records.checkpoint_files import (
    checkpoints_folder,
    drop_page_cache,
    files,
    flush_to_disk,
    last,
    size_bytes,
    unfinished,
    whole,
)
from zerobench.records.folder import TrialFolder


@pytest.mark.parametrize(("steps", "expected"), [
    ((), None), ((4,), 4), ((4, 8), 8), ((8, 4), 8), ((9, 10), 10), ((99, 100, 8), 100), ((99_999, 100_000), 100_000)
])  # fmt: skip
def test_the_last_checkpoint_is_that_of_the_most_steps(
    tmp_path: Path, steps: tuple[int, ...], expected: int | None
) -> None:
    for step in steps:
        whole(tmp_path, step).mkdir()
    assert last(tmp_path) == (None if expected is None else whole(tmp_path, expected))


def test_one_that_was_cut_short_is_none(tmp_path: Path) -> None:
    unfinished(tmp_path, 8).mkdir()
    (tmp_path / "notes").mkdir()
    assert last(tmp_path) is None
    whole(tmp_path, 4).mkdir()
    assert last(tmp_path) == whole(tmp_path, 4)
    unfinished(tmp_path, 8).rename(whole(tmp_path, 8))
    assert last(tmp_path) == whole(tmp_path, 8)


def test_its_size_is_that_of_all_files_under_it_however_deep(tmp_path: Path) -> None:
    (tmp_path / "engine" / "deeper").mkdir(parents=True)
    for name, size in (("position.json", 3), ("engine/a", 5), ("engine/deeper/b", 7)):
        (tmp_path / name).write_bytes(bytes(size))
    assert size_bytes(tmp_path) == 15
    assert {path.name for path in files(tmp_path)} == {"position.json", "a", "b"}
    assert size_bytes(tmp_path / "nothing") == 0


def _opened(file: int) -> Path:
    return Path(f"/proc/self/fd/{file}").readlink()


def test_every_file_and_every_folder_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "a").write_bytes(b"x")
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda file: flushed.append(_opened(file)))
    flush_to_disk(tmp_path)
    assert sorted(flushed) == [tmp_path, tmp_path / "engine", tmp_path / "engine" / "a"]


def test_the_kernel_is_asked_to_forget_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x")
    asked = []
    monkeypatch.setattr(os, "posix_fadvise", lambda file, *rest: asked.append((_opened(file).name, rest)))
    assert drop_page_cache(tmp_path)
    assert sorted(asked) == [("a", (0, 0, os.POSIX_FADV_DONTNEED)), ("b", (0, 0, os.POSIX_FADV_DONTNEED))]
    monkeypatch.delattr(os, "posix_fadvise")
    assert not drop_page_cache(tmp_path)


def test_checkpoints_lie_in_the_trials_folder_or_where_the_sweep_says_apart_from_other_trials(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path / "run" / "trials" / "t")
    own, named, other = (
        spec("zero1", checkpoint=CheckpointSpec(every_steps=2, folder=place), micro_batch_size=size)
        for place, size in ((None, 1), ("/scratch", 1), ("/scratch", 2))
    )
    assert checkpoints_folder(own, folder) == folder.checkpoints
    assert checkpoints_folder(spec("zero1"), folder) == folder.checkpoints
    places = {checkpoints_folder(one, folder) for one in (named, other)}
    assert len(places) == 2
    assert {place.is_relative_to("/scratch") for place in places} == {True}
