"""Which parts of the campaign are done, across calls and machines."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Self

from pydantic import BaseModel, Field


class Outcome(StrEnum):
    """How a part's last attempt ended."""

    DONE = "done"
    FAILED = "failed"
    CUT_OFF = "cut off"
    """The time was over; the next call goes on with it."""


class State(BaseModel):
    """What is known of each part that was begun."""

    outcomes: dict[str, Outcome] = Field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """What earlier calls have left in `folder`; nothing where there were none."""
        path = folder / "state.json"
        return cls.model_validate_json(path.read_bytes()) if path.is_file() else cls()

    def outcome(self, name: str) -> Outcome | None:
        """How the part ended; None where it was never begun."""
        return self.outcomes.get(name)

    def note(self, name: str, outcome: Outcome) -> None:
        """Keep how it ended."""
        self.outcomes[name] = outcome
