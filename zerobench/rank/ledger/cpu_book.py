"""The book that is kept beside torch's CPU allocator: every block that any thread takes or gives back, in order.

The total of the ledger on a CPU comes from here. It holds what no result of an operation shows: what a kernel
allocates while it runs (oneDNN's reordered copies), gloo's flat copies, tensors of other threads, tensors that only C++
holds. Of memory that is not the allocator's (`torch.frombuffer`, numpy's, shared memory) the storages that stand on it
tell, and each such piece is booked once. So it is with blocks from before the book was opened, or while it was closed:
those that C++ alone holds are missing.

Not in it: what libraries take from malloc themselves (oneDNN's JIT code, MKL's buffers, gloo's sockets, vectors of
C++). That is in the process's resident memory, and so in `rest_of_process`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from zerobench.rank.ledger.cpu_book_build import NoBookError, library


class Change(NamedTuple):
    """A block taken, or given back: its serial number, its bytes (negative: given back), the operation under way.

    Of a block that stands: the operation under which it was taken.
    """

    serial: int
    nbytes: int
    operation: int


@dataclass(frozen=True)
class Pages:
    """What was booked of a phase."""

    changes: Sequence[Change]
    standing: Sequence[Change]
    """The blocks at its end."""


class CpuBook:
    """The one book of this process. Raises NoBookError where it is not available."""

    def __init__(self) -> None:
        # Calls keep Python's lock, which makes them cheap; none waits for one who wants it.
        functions = ctypes.PyDLL(str(library()))
        self._open = _function(functions, "open", ctypes.c_int)
        self.close = _function(functions, "close", None)
        """From now on torch allocates as if the book did not exist."""
        self._record = _function(functions, "record", None, ctypes.c_int)
        self.total_bytes: Callable[[], int] = _function(functions, "total", ctypes.c_int64)
        """What is booked now."""
        self.find: Callable[[int, int], int] = _function(functions, "find", ctypes.c_int64, *_ADDRESS_AND_COUNT)
        """The serial number of the block at an address that a storage of so many bytes stands on."""
        self.leave: Callable[[int, int], None] = _function(functions, "leave", None, *_ADDRESS_AND_COUNT)
        """The storage on the block at an address, with a serial number, is gone."""
        self.forget_foreign = _function(functions, "forget_foreign", None)
        """Forget what storages told; they have to tell it again."""
        self.begin: Callable[[], int] = _function(functions, "begin", ctypes.c_int64)
        """This thread begins an operation; what it did before, to be given to `end`."""
        self.end: Callable[[int], None] = _function(functions, "end", None, ctypes.c_int64)
        self._counts = _function(functions, "counts", None, _POINTER, _POINTER)
        self._copy = _function(functions, "copy", None, ctypes.c_void_p, ctypes.c_void_p)

    def open(self) -> None:
        """From now on every block is booked. Raises NoBookError."""
        if not self._open():
            raise NoBookError("another allocator replaces torch's own")

    def start_phase(self) -> None:
        """Forget the changes so far, and keep those to come."""
        self._record(1)

    def pages(self) -> Pages:
        """What was booked since the phase began; nothing more is kept."""
        changes, standing = ctypes.c_int64(), ctypes.c_int64()
        self._counts(ctypes.byref(changes), ctypes.byref(standing))
        buffers = [(ctypes.c_int64 * (3 * count.value))() for count in (changes, standing)]
        self._copy(*buffers)
        self._record(0)
        return Pages(
            *([Change(*triple) for triple in zip(*[iter(list(buffer))] * 3, strict=True)] for buffer in buffers)
        )


GLOO = -1
"""In place of an operation in gloo's threads (kGloo of cpu_book.cpp)."""
HOROVOD = -2
"""The same in threads that were started within `starting_horovod` (kHorovod)."""

_POINTER = ctypes.POINTER(ctypes.c_int64)
_ADDRESS_AND_COUNT = (ctypes.c_size_t, ctypes.c_int64)


def opened_book() -> CpuBook:
    """The book, open. Raises NoBookError."""
    book = _book()
    if isinstance(book, NoBookError):
        raise book
    book.open()
    return book


@cache
def _book() -> CpuBook | NoBookError:
    try:
        return CpuBook()
    except NoBookError as error:
        return error
    except OSError as error:
        return NoBookError(str(error))


@contextmanager
def starting_horovod() -> Iterator[None]:
    """Give this thread another name meanwhile: threads begin with that of who starts them, and Horovod's keep it."""
    file = Path("/proc/thread-self/comm")
    before = file.read_text(encoding="utf-8")
    file.write_text("horovod", encoding="utf-8")
    try:
        yield
    finally:
        file.write_text(before.rstrip("\n"), encoding="utf-8")


def _function(loaded: ctypes.PyDLL, name: str, returns: Any, *takes: Any) -> Any:
    function = loaded[f"zerobench_book_{name}"]
    function.restype, function.argtypes = returns, takes
    return function
