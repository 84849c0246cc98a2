"""Paths in messages."""

from pathlib import Path


def shortest(path: Path) -> Path:
    """Return `path` relative to the current folder if it is inside."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
