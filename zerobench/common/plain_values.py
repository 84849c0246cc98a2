"""JSON values, for every document that programs read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def plain_value(value: Any) -> Any:
    """Convert `value` to JSON: a number that JSON lacks (NaN, infinity) becomes None, a date or a path its text."""
    if isinstance(value, Mapping):
        return {str(key): plain_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
