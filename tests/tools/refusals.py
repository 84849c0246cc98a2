"""How a mistake is answered: in one line, by a function as by the command line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from zerobench.common.errors import UserError


@contextmanager
def one_line(*words: str, start: str = "", match: str = "") -> Iterator[None]:
    """Assert that what is done here is refused in one line that begins with `start`, has these words and matches."""
    with pytest.raises(UserError) as caught:
        yield
    line = str(caught.value)
    assert line.isprintable()
    assert line.startswith(start)
    assert [word for word in words if word not in line] == []
    assert re.search(match, line), line


@contextmanager
def at_most_one_line() -> Iterator[None]:
    """Assert that what is done here is done, or refused in one line that fits on a screen."""
    try:
        yield
    except UserError as error:
        line = str(error)
        assert line.isprintable()
        assert 10 < len(line) < 1500


def refused(answer: tuple[int, str, str], words: str) -> None:
    """Assert that a command line answered with one line of complaint in which these words stand, and nothing else."""
    code, out, err = answer
    assert (code, out, err.count("\n"), err[-1:]) == (2, "", 1, "\n")
    assert err.startswith("zerobench: ")
    assert words.lower() in err.lower()
