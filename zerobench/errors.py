"""Errors that a person caused and can mend; the command line prints them as one line and exits with 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in what the user wrote: one line that names the field, the value and the choices."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows of it, in a notebook as everywhere: the line alone."""
        return [f"zerobench: {self}"]


def nearest(value: str, choices: Iterable[str], count: int = 3) -> list[str]:
    """The choices that look most like `value`, best first; empty when none is close."""
    return difflib.get_close_matches(value, list(choices), n=count, cutoff=0.6)


def unknown_choice(field: str, value: object, choices: Iterable[str]) -> UserError:
    """The error for a value outside its choices, with the nearest right one first where there is one."""
    known = list(choices)
    close = nearest(str(value), known, count=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return UserError(f"{field}: {value!r} is not known; {hint}choices: {', '.join(known)}")
