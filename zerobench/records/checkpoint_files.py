"""A checkpoint on disk: place, completeness and size, for the ranks that write and read it and the runner that selects
the last one.

    <folder of the trial's checkpoints>/
      step_000004/      complete: renamed once every file of every rank was on the disk
        position.json   progress of training (Position)
        ...             files of the strategy
      step_000008.part/ a save interrupted by a fault
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from zerobench.config.trial.trial import TrialSpec
from zerobench.records.folder import TrialFolder

UNIVERSAL = "universal"
"""Within a checkpoint: the output of deepspeed.checkpoint.ds_to_universal, for any number of ranks."""
ENGINE = "engine"
"""Within a checkpoint: files of DeepSpeed's engine."""


class Position(BaseModel):
    """Progress of training. Data and learning rate are functions of the step."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")

    step: int
    """Completed optimizer steps."""
    losses: list[float]
    """Global mean loss of each step."""


class ResumeFrom(BaseModel):
    """Checkpoint that a launch resumes from."""

    model_config = ConfigDict(extra="forbid")

    checkpoint: Path


def checkpoints_folder(trial: TrialSpec, folder: TrialFolder) -> Path:
    """Folder of the checkpoints of `trial`, whose folder is `folder`; its own even if the sweep names a place."""
    named = None if trial.checkpoint is None else trial.checkpoint.folder
    return folder.checkpoints if named is None else folder.outside(named, trial.trial_id)


def whole(folder: Path, step: int) -> Path:
    """Checkpoint of `step` under `folder`."""
    return folder / f"step_{step:06d}"


def unfinished(folder: Path, step: int) -> Path:
    """Checkpoint of `step` while it is being written."""
    return folder / f"step_{step:06d}.part"


def last(folder: Path) -> Path | None:
    """Last complete checkpoint under `folder`; None without one."""
    paths = [path for path in folder.glob("step_*") if path.suffix != ".part"]
    return max(paths, default=None)


def files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in files(folder))


def flush_to_disk(folder: Path) -> None:
    """Write what this machine has under `folder` to the disk (fsync(2)), with the names."""
    for path in [*files(folder), *(path for path in folder.rglob("*") if path.is_dir()), folder]:
        _act_on(path, os.fsync)


def drop_page_cache(folder: Path) -> bool:
    """Advise the kernel to drop the cached contents of files under `folder`, which must be on the disk.

    Returns whether the system supports it; the kernel may ignore the advice (posix_fadvise(2)).
    """
    if not hasattr(os, "posix_fadvise"):
        return False
    for path in files(folder):
        _act_on(path, lambda file: os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED))
    return True


def _act_on(path: Path, act: Callable[[int], None]) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        act(file)
    finally:
        os.close(file)
