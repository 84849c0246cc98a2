"""Reads what ranks and samplers have left when a trial ends: some may have been killed while they wrote.

The store is strict, because a report must not silently lack a record. A runner must write the trial's own record
whatever the others look like, and says in it what could not be read.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from zerobench.records.folder import TrialFolder
from zerobench.records.records import RankRecord

Model = TypeVar("Model", bound=BaseModel)


def readable_ranks(folder: TrialFolder) -> list[RankRecord]:
    """The rank records of a trial that can be read."""
    return read_readable(folder.rank_records(), RankRecord)[0]


def read_readable(paths: Iterable[Path], model: type[Model]) -> tuple[list[Model], list[str]]:
    """The documents at `paths` that can be read, and a line for each that cannot."""
    read, unreadable = [], []
    for path in paths:
        try:
            read.append(model.model_validate_json(path.read_bytes()))
        except (OSError, ValidationError) as error:
            unreadable.append(f"{path.name} cannot be read: {str(error).splitlines()[0]}")
    return read, unreadable
