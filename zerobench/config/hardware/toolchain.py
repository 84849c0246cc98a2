"""Detects installed tools that a trial may need, without importing torch or DeepSpeed (seconds each).

DeepSpeed compiles its C++ parts (CPUAdam, FusedAdam, asynchronous I/O for NVMe) on first use, unless they were built at
installation; the compilers that it would use are checked here.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from zerobench.common.training_python import training_python

_ASSIGNED_TEXT = re.compile(r"""^(\w+)\b[^=\n]*=\s*["']([^"']*)["']""", re.MULTILINE)
_AIO_PROGRAM = "#include <libaio.h>\nint main(void) { return io_destroy(0); }\n"


def package_folder(name: str) -> Path | None:
    """Folder of the top-level package `name` for the ranks' Python, without importing it; None if not installed."""
    return training_python().package_folder(name)


def torch_has_rpc() -> bool:
    """Return whether torch has torch.distributed.rpc, which only Linux builds do; True without torch, which other
    checks report.
    """
    folder = package_folder("torch")
    return folder is None or (sys.platform == "linux" and (folder / "distributed" / "rpc").is_dir())


def torch_build() -> dict[str, str | None]:
    """Build settings of the installed torch, parsed from its version.py: `cuda`, `hip`, `git_version`."""
    folder = package_folder("torch")
    assigned = (None if folder is None else version_texts(folder)) or {}
    return {name: assigned.get(name) for name in ("cuda", "hip", "git_version")}


def version_texts(folder: Path) -> dict[str, str] | None:
    """Strings that version.py of the torch in `folder` assigns, by name; None if the file does not exist."""
    try:
        text = (folder / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    return {match[1]: match[2] for match in _ASSIGNED_TEXT.finditer(text)}


def torch_cuda_version() -> str | None:
    """CUDA version of the installed torch, such as `13.0`; None for a build without CUDA."""
    return torch_build()["cuda"]


def torch_has_cuda() -> bool:
    return torch_cuda_version() is not None


def can_build_ops(*, for_cuda: bool) -> bool:
    """Return whether DeepSpeed's C++ parts can be compiled: with a C++ compiler and ninja, and nvcc for CUDA builds of
    torch.

    deepspeed/ops/op_builder/builder.py, jit_load and installed_cuda_version: on CUDA even the parts that run on the CPU
    need the toolkit.
    """
    tools = [os.environ.get("CXX", "c++").split(maxsplit=1)[0]] if os.environ.get("CXX", "c++").strip() else []
    return bool(tools) and all(map(_is_installed, [*tools, "ninja"])) and (not for_cuda or _has_nvcc())


def can_compile_graphs(*, for_cuda: bool) -> bool:
    """Return whether torch.compile's inductor has its backends: a C++ compiler, and Triton on GPUs.

    torch/_inductor/cpp_builder.py, get_cpp_compiler, uses CXX or g++; Triton compiles its launcher with a C compiler.
    """
    compiler = os.environ.get("CXX", "").strip() or "g++"
    return _is_installed(compiler) and (not for_cuda or package_folder("triton") is not None)


def op_is_built(name: str) -> bool:
    """Return whether DeepSpeed's part `name` (`cpu_adam`, `fused_adam`, `async_io`) was compiled at installation."""
    folder = package_folder("deepspeed")
    return folder is not None and any((folder / "ops").glob(f"*/{name}_op*.so"))


def has_libaio() -> bool:
    """Try to compile and link a C program that uses libaio, with the present CFLAGS and LDFLAGS.

    DeepSpeed tries the same itself (op_builder/async_io.py, is_compatible), without the header.
    """
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    flags = [shlex.split(os.environ.get(name, "")) for name in ("CFLAGS", "LDFLAGS")]
    with tempfile.TemporaryDirectory(prefix="zerobench-") as folder:
        source = Path(folder, "aio.c")
        source.write_text(_AIO_PROGRAM, encoding="ascii")
        output = ["-o", str(source.with_suffix(""))]
        argv = [*compiler, *flags[0], str(source), *flags[1], "-laio", *output]
        try:
            done = subprocess.run(argv, capture_output=True, timeout=60, check=False)
        except (OSError, subprocess.SubprocessError):
            return False
    return done.returncode == 0


def _is_installed(program: str) -> bool:
    """Find `program` on the search path or next to the ranks' interpreter, where pip installs ninja."""
    return shutil.which(program) is not None or (training_python().bin / program).is_file()


def _has_nvcc() -> bool:
    """Look for the toolkit as torch does (torch/utils/cpp_extension.py, _find_cuda_home)."""
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    home = Path(named or "/usr/local/cuda")
    return (home / "bin/nvcc").is_file() or (named is None and shutil.which("nvcc") is not None)
