"""One step of making a separate environment, and the digest by which it is known to be done."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CHECK = "check"
"""Name of the last step, which imports the modules of a rank."""


@dataclass(frozen=True)
class Step:
    """A command, or a function if `action` is set."""

    name: str
    argv: Sequence[str] = ()
    added: Mapping[str, str] = field(default_factory=dict)
    """Variables added to ours for its command."""
    action: Callable[[], None] | None = None
    takes: str = ""
    """Duration for people, if more than seconds."""
    with_code: bool = False
    """True if it imports zerobench."""
    requirements: Path | None = None
    """File of packages with their hashes that its pip command installs, and nothing else."""
    reads: str = ""
    """Text of further inputs: if it changes, the step is done again."""
    clears: Path | None = None
    """Folder that it makes, removed before: an interrupted attempt may have left half of it."""
    disturbs: bool = True
    """True if it changes files used by programs that run in the environment."""

    @property
    def command(self) -> list[str]:
        """The command line."""
        hashed = [] if self.requirements is None else ["--require-hashes", "--requirement", str(self.requirements)]
        return [*self.argv, *hashed]

    @property
    def digest(self) -> str:
        """Equal for steps with the same effect, whatever the interpreter and the number of compilers."""
        added = {name: value for name, value in self.added.items() if name != "MAKEFLAGS"}
        reads = self.reads if self.requirements is None else self.requirements.read_text(encoding="utf-8")
        text = json.dumps([self.name, list(self.argv[1:]), added, reads])
        return hashlib.sha256(text.encode()).hexdigest()[:16]
