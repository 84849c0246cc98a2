"""Texts that are compared whole with what they were when somebody last looked at them."""

import os
from pathlib import Path


def as_looked_at(text: str, golden: Path) -> None:
    """Assert that the text is that of the file. With UPDATE_GOLDEN=1 it is written anew: read the difference."""
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")
