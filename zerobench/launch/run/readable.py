"""Read the files of ranks and samplers after a trial: some may have been killed while writing.

The store is strict, because a report must not silently lack a record. A runner must write the trial's own record
whatever the others look like, and notes in it what could not be read.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from zerobench.records.folder import TrialFolder
from zerobench.records.records import RankRecord

Model = TypeVar("Model", bound=BaseModel)


def readable_ranks(folder: TrialFolder) -> list[RankRecord]:
    """Return the readable rank records of a trial."""
    return read_readable(folder.rank_records(), RankRecord)[0]


def read_readable(paths: Iterable[Path], model: type[Model]) -> tuple[list[Model], list[str]]:
    """Return the readable documents at `paths`, and a line for each unreadable one."""
    read, unreadable = [], []
    for path in paths:
        try:
            read.append(model.model_validate_json(path.read_bytes()))
        except (OSError, ValidationError) as error:
            unreadable.append(f"{path.name} cannot be read: {str(error).splitlines()[0]}")
    return read, unreadable
