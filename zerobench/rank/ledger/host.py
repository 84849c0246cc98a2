"""Memory of this process as the kernel and the C library report it, without knowledge of tensors.

Resident sizes are only correct when malloc returns freed memory: start Python with MALLOC_MMAP_THRESHOLD_=65536,
MALLOC_TRIM_THRESHOLD_=65536 and MALLOC_TOP_PAD_=0 (the launcher does), or freed tensors stay resident. The price: every
tensor is mapped anew and its pages zeroed, which makes a training step on a CPU a quarter slower. So malloc is pinned
while memory is measured and unpinned before anything is timed.
"""

from __future__ import annotations

import ctypes
import os
import resource
from functools import cache
from pathlib import Path

from zerobench.common.malloc import MAPPED_FROM_BYTES
from zerobench.common.vocabulary import Phase, StepKind
from zerobench.records.records import ProcessMemory

# malloc.h
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TOP_BIT = bytes(byte >> 7 for byte in range(256))


class _Mallinfo2(ctypes.Structure):
    """struct mallinfo2 of glibc 2.33 and later (malloc.h)."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


@cache
def _statm() -> int:
    return os.open("/proc/self/statm", os.O_RDONLY)


def resident_bytes() -> int:
    """Resident set size now. Takes about two microseconds."""
    return int(os.pread(_statm(), 200, 0).split()[1]) * _PAGE_BYTES


def address_space() -> tuple[int, int] | None:
    """Bytes of address space in use by this process, and its limit (`ulimit -v`); None without a limit.

    Addresses count as soon as they are reserved, so this is more than resident memory.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    return int(os.pread(_statm(), 200, 0).split()[0]) * _PAGE_BYTES, limit


def proportional_bytes(pid: int | str = "self") -> int | None:
    """Proportional set size now: shared pages divided among their sharers. Milliseconds for a large process."""
    return _field(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")


def reset_peak_resident() -> bool:
    """Reset the kernel's peak of the resident size, so that the next phase has a peak of its own.

    Also resets ru_maxrss of getrusage. Returns False if the kernel does not allow it.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def peak_resident_bytes(pid: int | str = "self") -> int | None:
    """Largest resident set size since the start or the last reset (VmHWM)."""
    return _field(Path(f"/proc/{pid}/status"), "VmHWM:")


def process_memory(
    step: StepKind, phase: Phase, rss_bytes: int, peak_rss_bytes: int | None, pinned_bytes: int | None
) -> ProcessMemory:
    """Figures of the kernel and malloc at the end of a phase, in which `rss_bytes` were resident."""
    return ProcessMemory(
        step=step,
        phase=phase,
        rss_bytes=rss_bytes,
        pss_bytes=proportional_bytes(),
        peak_rss_bytes=peak_rss_bytes,
        malloc_bytes=malloc_bytes(),
        pinned_bytes=pinned_bytes,
    )


def mapped_bytes(folder: Path) -> int:
    """Resident bytes of mapped files in a folder, which the kernel can reclaim at any time.

    Limited to a folder, since pages of code become resident with every function called for the first time. Reads
    /proc/self/pagemap (the kernel's Documentation/admin-guide/mm/pagemap.rst): 8 bytes a page, bit 63 if resident.
    """
    under, npages = f"{folder.resolve()}/", 0
    with Path("/proc/self/maps").open(encoding="utf-8") as mappings, Path("/proc/self/pagemap").open("rb", 0) as pages:
        for addresses in (line.split()[0] for line in mappings if under in line):
            first, end = (int(address, 16) // _PAGE_BYTES for address in addresses.split("-"))
            entries = os.pread(pages.fileno(), 8 * (end - first), 8 * first)
            npages += entries[7::8].translate(_TOP_BIT).count(1)
    return npages * _PAGE_BYTES


def malloc_bytes() -> int | None:
    """Bytes allocated through glibc's malloc now; None with another C library."""
    libc = ctypes.CDLL(None)
    try:
        mallinfo2 = libc.mallinfo2
    except AttributeError:
        return None
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)


def unpin_malloc() -> bool:
    """Let malloc keep freed memory again, with the bounds that glibc's own adaptive thresholds reach (mallopt(3)).

    Returns False with a C library that has no mallopt.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    bounds = {_M_MMAP_THRESHOLD: MAPPED_FROM_BYTES, _M_TRIM_THRESHOLD: 64 << 20, _M_TOP_PAD: 128 << 10}
    return all(mallopt(parameter, value) == 1 for parameter, value in bounds.items())


def _field(path: Path, name: str) -> int | None:
    """A kernel figure in kB of a process, in bytes; None if it is not readable."""
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)
