"""Facts out of environment.json, each as one line of text; None for what a run did not record, or not in this form."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from zerobench.report.column_units import plain

Environment = Mapping[str, Any]

_SHORT_COMMIT = 12


def at(environment: Environment, *path: str) -> Any:
    """The value under these keys, one inside the other; None where any is missing."""
    value: Any = environment
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def text(value: Any) -> str | None:
    """A value of environment.json on one line; None stays None."""
    if value is None:
        return None
    return plain(value if isinstance(value, str) else json.dumps(value))


def gpu_names(environment: Environment) -> str | None:
    """`8 x NVIDIA H200`; None where the run's machine had none."""
    gpus = at(environment, "gpus")
    names = Counter(str(at(gpu, "name")) for gpu in gpus) if isinstance(gpus, list) else Counter()
    return plain(", ".join(f"{count} x {name}" for name, count in sorted(names.items()))) or None


def commit(found: Any) -> str | None:
    """`0123456789ab`, with `+ changes` where tracked files differed from it."""
    if not isinstance(found, Mapping) or not found.get("commit"):
        return None
    return plain(str(found["commit"])[:_SHORT_COMMIT]) + (" + changes" if found.get("dirty") else "")
