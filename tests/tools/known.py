"""What a test knows to be there though its type says that it may not."""

from typing import TypeVar

T = TypeVar("T")


def known(value: T | None) -> T:
    """The value; the test fails where there is none."""
    assert value is not None
    return value
