"""How paths are shown to whoever typed the command."""

from pathlib import Path


def shortest(path: Path) -> Path:
    """`path` from the current folder, where it lies in it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
