"""One step of making an environment of its own: what it does, and how it is known to have been done."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

CHECK = "check"
"""The last step, done every time."""


@dataclass(frozen=True)
class Step:
    """One step of making an environment: a command, or a function where `action` is set."""

    name: str
    argv: Sequence[str] = ()
    added: Mapping[str, str] = field(default_factory=dict)
    """What its environment has more than ours."""
    action: Callable[[], None] | None = None
    takes: str = ""
    """How long, for people, where it is more than some seconds."""
    with_code: bool = False
    """Whether it imports zerobench."""
    reads: str = ""
    """Text of the files that it reads: when they change, it is done again."""

    @property
    def digest(self) -> str:
        """Equal for steps that do the same."""
        text = json.dumps([self.name, list(self.argv), dict(self.added), self.reads])
        return hashlib.sha256(text.encode()).hexdigest()[:16]
