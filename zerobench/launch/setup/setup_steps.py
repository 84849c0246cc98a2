"""One step of making an environment of its own: what it does, and how it is known to have been done."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CHECK = "check"
"""Name of the last step, which imports what ranks import."""


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
    requirements: Path | None = None
    """What its command of pip installs: a file with the hash of each package, and nothing without one."""
    reads: str = ""
    """Text of what it reads besides: when that changes, it is done again."""
    clears: Path | None = None
    """The folder that it makes, which is removed before: an earlier attempt may have left half of it."""
    disturbs: bool = True
    """Whether it changes what programs that run in the environment use."""

    @property
    def command(self) -> list[str]:
        """What is run."""
        hashed = [] if self.requirements is None else ["--require-hashes", "--requirement", str(self.requirements)]
        return [*self.argv, *hashed]

    @property
    def digest(self) -> str:
        """Equal for steps that do the same, by whichever interpreter and with however many compilers."""
        added = {name: value for name, value in self.added.items() if name != "MAKEFLAGS"}
        reads = self.reads if self.requirements is None else self.requirements.read_text(encoding="utf-8")
        text = json.dumps([self.name, list(self.argv[1:]), added, reads])
        return hashlib.sha256(text.encode()).hexdigest()[:16]
