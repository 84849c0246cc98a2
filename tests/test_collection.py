"""What malloc keeps of a report's first half is given back before its second."""

import ctypes

import pytest

from zerobench.collection import given_back


def test_what_is_free_at_the_end_is_given_back_also_after_an_error() -> None:
    with given_back():  # or malloc takes what other tests left
        pass
    resident = _resident_bytes()
    with pytest.raises(ValueError, match="stop"), given_back():
        blocks = [
            ctypes.create_string_buffer(b"x" * 60_000, 60_000) for _ in range(1000)
        ]  # below malloc's own mappings
        last = ctypes.create_string_buffer(60_000)  # keeps what lies below from being given back as a whole
        assert _resident_bytes() - resident > 50_000_000
        del blocks
        raise ValueError("stop")
    assert len(last) == 60_000
    assert _resident_bytes() - resident < 20_000_000


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 -- the kernel's, read at once
        return int(file.read().split()[1]) * 4096
