"""Errors that a user caused and can correct; the command line prints them as one line and exits with 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class UserError(Exception):
    """A mistake in the user's input: one line that names the field, the value and the choices."""

    def _render_traceback_(self) -> list[str]:
        """IPython's hook: a notebook shows only the line."""
        return [f"zerobench: {self}"]


def nearest(value: str, choices: Iterable[str], count: int = 3) -> list[str]:
    """Choices most similar to `value`, best first; empty if none is close."""
    return difflib.get_close_matches(value, list(choices), n=count, cutoff=0.6)


def unknown_choice(field: str, value: object, choices: Iterable[str], listed_by: str | None = None) -> UserError:
    """Error for a value outside its choices (see choices_for)."""
    return UserError(f"{field}: {value!r} is not known; {choices_for(value, choices, listed_by)}")


def _nearest(value: str, choices: Sequence[str], count: int) -> list[str]:
    """Nearest choices of about equal similarity."""
    close = nearest(value, choices, count)
    likeness = [difflib.SequenceMatcher(None, choice, value).ratio() for choice in close]
    return [choice for choice, like in zip(close, likeness, strict=True) if like > likeness[0] - _AS_NEAR]


_AS_NEAR = 0.03
FEW = 13
"""Choices that an error lists in full."""
_SOME = 5


def choices_for(
    value: object, choices: Iterable[str], listed_by: str | None = None, close: Sequence[str] | None = None
) -> str:
    """Text on the choices for `value` in an error: `did you mean 'zero2'? choices: zero1, zero2`.

    With more than a few, those near it, or some if none is, and `listed_by`, the command that lists all. `close`: near
    ones if the caller knows better than by spelling.
    """
    known = list(map(str, choices))
    many = listed_by is not None and len(known) > FEW
    near = _nearest(str(value), known, count=3 if many else 1) if close is None else close
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    if not many:
        return f"{hint}choices: {', '.join(known) or 'none'}"
    some = "" if near else f"choices: {', '.join(known[:_SOME])}, ...; "
    return f"{hint}{some}all {len(known)}: {listed_by}"
