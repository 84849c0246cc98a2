"""A checkpoint on disk: where it lies, when it is whole, how large it is. Shared by the ranks that write and read it
and the runner that picks the last one.

    <folder of the trial's checkpoints>/
      step_000004/      whole: it was renamed when every file of every rank was on the disk
        position.json   how far training was (Position)
        ...             what the strategy wrote
      step_000008.part/ a save that a fault cut short
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from zerobench.config.trial.trial import TrialSpec
from zerobench.records.folder import TrialFolder

UNIVERSAL = "universal"
"""Within a checkpoint: what deepspeed.checkpoint.ds_to_universal made of it, for any number of ranks."""
ENGINE = "engine"
"""Within a checkpoint: what DeepSpeed's engine wrote."""


class Position(BaseModel):
    """How far training was. Data and learning rate are functions of the step."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")

    step: int
    """Optimizer steps done."""
    losses: list[float]
    """Global mean loss of each."""


class ResumeFrom(BaseModel):
    """Which checkpoint a launch goes on from."""

    model_config = ConfigDict(extra="forbid")

    checkpoint: Path


def checkpoints_folder(trial: TrialSpec, folder: TrialFolder) -> Path:
    """Where the checkpoints of `trial`, whose folder is `folder`, lie: its own also where the sweep names a place."""
    named = None if trial.checkpoint is None else trial.checkpoint.folder
    return folder.checkpoints if named is None else folder.outside(named, trial.trial_id)


def whole(folder: Path, step: int) -> Path:
    """The checkpoint of `step` under `folder`."""
    return folder / f"step_{step:06d}"


def unfinished(folder: Path, step: int) -> Path:
    """The same while it is written."""
    return folder / f"step_{step:06d}.part"


def last(folder: Path) -> Path | None:
    """The last whole checkpoint under `folder`; None where there is none."""
    paths = [path for path in folder.glob("step_*") if path.suffix != ".part"]
    return max(paths, default=None)


def files(folder: Path) -> Iterator[Path]:
    """All files under `folder`."""
    return (path for path in folder.rglob("*") if path.is_file())


def size_bytes(folder: Path) -> int:
    """Bytes of all files under `folder`."""
    return sum(path.stat().st_size for path in files(folder))


def flush_to_disk(folder: Path) -> None:
    """Return when what this machine wrote under `folder` is on the disk (fsync(2)), names included."""
    for path in [*files(folder), *(path for path in folder.rglob("*") if path.is_dir()), folder]:
        _with_open(path, os.fsync)


def drop_page_cache(folder: Path) -> bool:
    """Ask the kernel to forget the contents of the files under `folder`, which must be on the disk; whether it could
    be asked. It may not listen: it is advice (posix_fadvise(2)).
    """
    if not hasattr(os, "posix_fadvise"):
        return False
    for path in files(folder):
        _with_open(path, lambda file: os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED))
    return True


def _with_open(path: Path, act: Callable[[int], None]) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        act(file)
    finally:
        os.close(file)
