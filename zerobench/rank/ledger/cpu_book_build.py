"""Compiles the book of torch's CPU allocator, once for each version of torch, into torch's own extension cache.

It takes seconds and needs no lock: whoever compiles moves the finished library into place, and one that comes second
replaces it with the same.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import torch

from zerobench.config.deepspeed.kernels import build_root

_SOURCE = Path(__file__).with_name("cpu_book.cpp")
_TIMEOUT_S = 120


class NoBookError(Exception):
    """The library is not available on this machine; the message says why, in words that follow a colon."""


def library() -> Path:
    """The compiled library. Raises NoBookError."""
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
            raise NoBookError(_why(compiler, error)) from error
    return path


def _compile(compiler: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch_folder = Path(torch.__file__).parent
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder, path.name)
        command = [compiler, "-O2", "-std=c++20", "-fPIC", "-shared", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
        command += ["-I", str(torch_folder / "include"), str(_SOURCE), "-o", str(made)]
        command += ["-L", str(torch_folder / "lib"), "-lc10"]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)
        made.replace(path)


def _why(compiler: str, error: subprocess.SubprocessError) -> str:
    output = error.stderr if isinstance(error, subprocess.CalledProcessError) else None
    lines = [line for line in (output or "").splitlines() if "error" in line] or [str(error)]
    return f"{compiler}: {lines[0]}"
