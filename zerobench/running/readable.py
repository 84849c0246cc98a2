"""Reads what ranks and samplers have left when a trial ends: some may have been killed while they wrote.

The store is strict, because a report must not silently lack a record. A runner must write the trial's own record
whatever the others look like, and says in it what could not be read.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)


def read_readable(paths: Iterable[Path], model: type[Model]) -> tuple[list[Model], list[str]]:
    """The documents at `paths` that can be read, and a line for each that cannot."""
    read, unreadable = [], []
    for path in paths:
        try:
            read.append(model.model_validate_json(path.read_bytes()))
        except (OSError, ValidationError) as error:
            unreadable.append(f"{path.name} cannot be read: {str(error).splitlines()[0]}")
    return read, unreadable
