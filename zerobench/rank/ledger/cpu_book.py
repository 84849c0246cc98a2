"""The book of torch's CPU allocator: every block that any thread takes or frees, in order.

The total of the ledger on a CPU comes from here. The book includes memory that no result of an operation shows:
allocations of running kernels (oneDNN's reordered copies), gloo's flat copies, tensors of other threads, tensors that
only C++ owns. Memory from other sources (`torch.frombuffer`, numpy, shared memory) is booked once, through the storages
on it. So are blocks from before the book was opened or while it was closed; those that C++ alone owns are missing.

Not in the book: memory that libraries take from malloc directly (oneDNN's JIT code, MKL's buffers, gloo's sockets, C++
vectors). It is resident memory of the process, and so part of `rest_of_process`.

The library is compiled once for each version of torch into torch's own extension cache. That takes seconds and needs no
lock: each compiler moves the finished library into place, and a second one replaces it with the same file.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from zerobench.config.deepspeed.kernels import build_root

_SOURCE = Path(__file__).with_name("cpu_book.cpp")
_TIMEOUT_S = 120


class NoBookError(Exception):
    """The library is not available on this machine; the message gives the reason, to follow a colon."""


def library() -> Path:
    """Path of the compiled library; compiles it if missing. Raises NoBookError."""
    source = _SOURCE.read_bytes()
    compiler = os.environ.get("CXX", "c++")
    built_for = f"{torch.__version__} {torch._C._GLIBCXX_USE_CXX11_ABI} {compiler}"
    key = hashlib.sha256(source + built_for.encode()).hexdigest()[:16]
    path = build_root(os.environ) / "zerobench_cpu_book" / f"{key}.so"
    if not path.exists():
        try:
            _compile(compiler, path)
        except OSError as error:
            raise NoBookError(f"{compiler}: {error.strerror or error}") from error
        except subprocess.SubprocessError as error:
            output = error.stderr if isinstance(error, subprocess.CalledProcessError) else None
            lines = [line for line in (output or "").splitlines() if "error" in line] or [str(error)]
            raise NoBookError(f"{compiler}: {lines[0]}") from error
    return path


def _compile(compiler: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch_folder = Path(torch.__file__).parent
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        output = Path(folder, path.name)
        command = [compiler, "-O2", "-std=c++20", "-fPIC", "-shared", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
        command += ["-I", str(torch_folder / "include"), str(_SOURCE), "-o", str(output)]
        command += ["-L", str(torch_folder / "lib"), "-lc10"]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)
        output.replace(path)


class Change(NamedTuple):
    """A block taken or freed: serial number, bytes (negative: freed), and the current operation.

    For a standing block, the operation under which it was taken.
    """

    serial: int
    nbytes: int
    operation: int


@dataclass(frozen=True)
class Pages:
    """Entries of the book for one phase."""

    changes: Sequence[Change]
    standing: Sequence[Change]
    """Blocks at the end of the phase."""


class CpuBook:
    """The one book of this process. Raises NoBookError if it is not available."""

    def __init__(self) -> None:
        # PyDLL keeps Python's lock during calls, which makes them cheap; none of them waits for another thread.
        functions = ctypes.PyDLL(str(library()))
        self._open = _function(functions, "open", ctypes.c_int)
        self.close = _function(functions, "close", None)
        """Stop booking: torch allocates as if the book did not exist."""
        self._record = _function(functions, "record", None, ctypes.c_int)
        self.total_bytes: Callable[[], int] = _function(functions, "total", ctypes.c_int64)
        """Bytes booked now."""
        self.find: Callable[[int, int], int] = _function(functions, "find", ctypes.c_int64, *_ADDRESS_AND_COUNT)
        """Serial number of the block at an address, under a storage of the given bytes."""
        self.leave: Callable[[int, int], None] = _function(functions, "leave", None, *_ADDRESS_AND_COUNT)
        """Report that the storage on the block at an address, with a serial number, is gone."""
        self.forget_foreign = _function(functions, "forget_foreign", None)
        """Forget the blocks booked through storages, which have to be reported again."""
        self.begin: Callable[[], int] = _function(functions, "begin", ctypes.c_int64)
        """Begin an operation in this thread; returns the previous one, for `end`."""
        self.end: Callable[[int], None] = _function(functions, "end", None, ctypes.c_int64)
        self._counts = _function(functions, "counts", None, _POINTER, _POINTER)
        self._copy = _function(functions, "copy", None, ctypes.c_void_p, ctypes.c_void_p)

    def open(self) -> None:
        """Book every block from now on. Raises NoBookError."""
        if not self._open():
            raise NoBookError("another allocator replaces torch's own")

    def start_phase(self) -> None:
        """Forget the changes so far, and record the following ones."""
        self._record(1)

    def pages(self) -> Pages:
        """Entries since the phase began; recording stops."""
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
"""In place of an operation in threads started within `starting_horovod` (kHorovod)."""

_POINTER = ctypes.POINTER(ctypes.c_int64)
_ADDRESS_AND_COUNT = (ctypes.c_size_t, ctypes.c_int64)


def opened_book() -> CpuBook:
    """Open the book of this process and return it. Raises NoBookError."""
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
    """Rename this thread while open: a new thread inherits the name of its starter, and Horovod's threads keep it."""
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
