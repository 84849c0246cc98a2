"""The kernel's and malloc's figures move with what the process takes."""

import ctypes
import mmap
import subprocess
import sys
from pathlib import Path

import pytest

from zerobench.rank.ledger import host

SCRIPT = """
from zerobench.rank.ledger import host
block = bytearray(80_000_000)
del block
assert host.reset_peak_resident()
before = host.peak_resident_bytes()
block = bytearray(50_000_000)
print(host.peak_resident_bytes() - before, host.resident_bytes(), host.proportional_bytes(), host.malloc_bytes())
"""


@pytest.fixture(scope="module")
def figures():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


def test_the_peak_is_the_phases_own_after_a_reset(figures):
    assert 45_000_000 < figures[0] < 60_000_000


def test_proportional_size_is_at_most_the_resident_size(figures):
    assert 0 < figures[2] <= figures[1] * 1.01


def test_malloc_counts_what_it_handed_out(figures):
    assert figures[3] >= 50_000_000


class Libc:
    """A C library's mallopt, which takes what it is given or does not, and no mallinfo2."""

    def __init__(self, *, takes: bool = True) -> None:
        self.given: dict[int, int] = {}
        self.takes = takes

    def mallopt(self, parameter: int, value: int) -> int:
        self.given[parameter] = value
        return int(self.takes)


def test_malloc_is_let_loose_by_the_numbers_of_mallopt(monkeypatch: pytest.MonkeyPatch) -> None:
    libc, refuses = Libc(), Libc(takes=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: libc)
    assert host.unpin_malloc()
    assert libc.given == {-3: 32 * 2**20, -1: 64 * 2**20, -2: 128 * 2**10}  # malloc.h; mallopt(3)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: refuses)
    assert not host.unpin_malloc()


def test_what_the_library_or_the_kernel_does_not_tell_is_not_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert (host.malloc_bytes(), host.unpin_malloc()) == (None, False)
    monkeypatch.setattr(host, "Path", lambda _: tmp_path / "no" / "such")
    assert (host.reset_peak_resident(), host.peak_resident_bytes(), host.proportional_bytes()) == (False, None, None)
    status = tmp_path / "status"
    status.write_text("Name: python\nVmHWM:\t 12 kB\n", encoding="ascii")
    monkeypatch.setattr(host, "Path", lambda _: status)
    assert (host.peak_resident_bytes(), host.proportional_bytes()) == (12 * 1024, None)


def test_mapped_pages_are_those_that_were_touched_of_the_folders_files(tmp_path: Path) -> None:
    whole, folder = 8 << 20, tmp_path / "weights"
    folder.mkdir()
    for file in (folder / "model", tmp_path / "weights.other"):
        file.write_bytes(bytes(whole))
    with (folder / "model").open("rb") as one, (tmp_path / "weights.other").open("rb") as other:
        mapped = mmap.mmap(one.fileno(), 0, access=mmap.ACCESS_READ)
        beside = mmap.mmap(other.fileno(), 0, access=mmap.ACCESS_READ)
        assert len(beside[:]) == whole
        assert host.mapped_bytes(folder) == 0
        assert mapped[whole // 2] == 0
        assert 0 < host.mapped_bytes(folder) <= whole // 2  # the kernel maps some pages around the one that is read
        assert len(mapped[:]) == whole
        assert host.mapped_bytes(folder) == whole
