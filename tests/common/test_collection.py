"""What malloc keeps of a report's first half is given back before its second."""

import ctypes

import pytest

from zerobench.common.collection import return_memory


def test_what_is_free_at_the_end_is_given_back_also_after_an_error() -> None:
    with pytest.raises(ValueError, match="stop"), return_memory():
        # below malloc's own mappings; those that stay keep it from giving back the others as a whole
        blocks = [ctypes.create_string_buffer(b"x" * 60_000, 60_000) for _ in range(1000)]
        staying = blocks[99::100]
        held = _resident_bytes()  # where malloc took what other tests had left, no more than before
        del blocks
        raise ValueError("stop")
    assert len(staying) == 10
    assert held - _resident_bytes() > 50_000_000


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 -- the kernel's, read at once
        return int(file.read().split()[1]) * 4096
