"""What became of each mutant so far, in one file, so that a run can be cut short and go on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.mutants.mirror import Mirror, file_of
from benchmarks.mutants.positions import Mutant
from benchmarks.mutants.trial import Verdict


@dataclass(frozen=True)
class Key:
    """What a verdict depends on."""

    module: str
    """Digest of the module's source."""
    tests: str
    """Digest of the sources of its tests."""


class Verdicts:
    """Verdicts by mutant; one holds as long as the module and its tests are what they were."""

    def __init__(self, file: Path, *, trusts_the_killed: bool = False) -> None:
        self._file = file
        self._trusts = trusts_the_killed
        self._held: dict[str, tuple[Key, Verdict]] = {}
        self.read()

    def read(self) -> None:
        """Take what the file holds by now."""
        lines = self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else []
        for line in lines:
            name, module, tests, verdict = json.loads(line)
            self._held[name] = Key(module, tests), Verdict(verdict)

    def of(self, mutant: Mutant, key: Key) -> Verdict | None:
        """The verdict on a mutant; None where there is none that still holds."""
        if mutant.name not in self._held:
            return None
        held, verdict = self._held[mutant.name]
        is_trusted = self._trusts and verdict is not Verdict.SURVIVED
        return verdict if held == key or (is_trusted and held.module == key.module) else None

    def last(self, mutant: Mutant, key: Key) -> Verdict | None:
        """What was last said of a mutant of the module as it is, whatever became of the tests since."""
        held, verdict = self._held.get(mutant.name, (None, None))
        return verdict if held is not None and held.module == key.module else None

    def add(self, mutant: Mutant, key: Key, verdict: Verdict) -> None:
        """Keep a verdict, at once: the next line may never come."""
        self._held[mutant.name] = key, verdict
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps([mutant.name, key.module, key.tests, verdict]) + "\n")


def key_of(module: Path, tests: Mirror) -> Key:
    """What verdicts on a module's mutants depend on."""
    return Key(_digest([module]), _digest(file_of(name) for name in (*tests.nearest, *tests.others)))


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
