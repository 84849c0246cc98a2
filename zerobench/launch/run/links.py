"""Refuse links that lead out of a run folder: one received from others may link to any file."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from zerobench.common.errors import UserError
from zerobench.records.folder import RunFolder


def refuse_links(run: RunFolder, trial_ids: Iterable[str]) -> None:
    """Raise UserError if the run, or the folder of a trial to run, contains a link that leads out of it.

    Ranks, logs and moves use these names directly. Links within the run are the user's.
    """
    inside = Path(os.path.realpath(run.path))
    for path in _links(run, trial_ids):
        if not Path(os.path.realpath(path)).is_relative_to(inside):
            raise UserError(f"RUN: {path} is a link out of the run folder ({path.readlink()})")


def _links(run: RunFolder, trial_ids: Iterable[str]) -> Iterator[Path]:
    yield from _links_in(run.path, deep=False)
    for shelf in (run.trials, run.slurm, run.nodes):
        yield from _links_in(shelf, deep=False)
    for trial_id in trial_ids:
        yield from _links_in(run.trial(trial_id).path, deep=True)


def _links_in(folder: Path, *, deep: bool) -> Iterator[Path]:
    if not folder.is_dir():
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                yield Path(entry.path)
            elif deep and entry.is_dir(follow_symlinks=False):
                yield from _links_in(Path(entry.path), deep=True)
