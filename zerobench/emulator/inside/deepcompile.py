"""DeepCompile's native part: DeepSpeed's own C++, compiled with the machine's compiler and loaded unchanged.

It gathers, reduces and offloads with streams, torch's allocator and NCCL, without kernels of its own, so its memory is
the same here. torch ships its headers, and the emulator's setup those of CUDA's runtime; of NVIDIA's other libraries
torch's headers use a few types, which include/ declares.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from zerobench.common.errors import UserError
from zerobench.emulator.build import VALUES_VARIABLE
from zerobench.emulator.compiler import CPP, digest_of, join_sources
from zerobench.emulator.places import Places

INCLUDE = Path(__file__).parents[1] / "include"
_NAME = "dc"
"""Name of the extension, also in its entry point."""
_OWN = ("get_rs_stream", "get_copy_stream")
"""Functions that several of DeepSpeed's files define separately."""


@cache
def load() -> ModuleType:
    """DeepSpeed's module, compiled (half a minute) on first use with this torch and this DeepSpeed.

    Raises UserError: it does not compile. RuntimeError: this process was not started for an emulated GPU.
    """
    from deepspeed.ops.op_builder.dc import DeepCompileBuilder

    values = os.environ.get(VALUES_VARIABLE)
    if not values:
        raise RuntimeError("DeepCompile needs CUDA: this process was not started for an emulated GPU")
    stand_ins = Path(values).parent
    builder: Any = DeepCompileBuilder()
    files = [Path(builder.deepspeed_src_path(source)) for source in builder.sources()]
    include = [INCLUDE, *sorted({file.parent for file in files}), files[0].parents[1] / "includes"]
    compiled = [path for folder in include for path in sorted(folder.rglob("[!.]*")) if path.is_file()]
    library = stand_ins / f"deepcompile-{digest_of(compiled, f'{torch.__version__} {sys.version}')}.so"
    if not library.is_file():
        _build(library, files, [*include, Places(stand_ins.parent).include])
    spec: Any = importlib.util.spec_from_file_location(_NAME, library)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _build(library: Path, files: Sequence[Path], include: Sequence[Path]) -> None:
    own = Path(torch.__file__).parent
    headers = [*include, own / "include", own / "include/torch/csrc/api/include", sysconfig.get_path("include")]
    folders = [word for folder in headers for word in ("-isystem", str(folder))]
    linked = [f"-L{own / 'lib'}", "-lc10", "-lc10_cuda", "-ltorch_cpu", "-ltorch_cuda", "-ltorch", "-ltorch_python"]
    options = ["-O0", "-std=c++20", f"-DTORCH_EXTENSION_NAME={_NAME}", *folders, *linked]
    with tempfile.TemporaryDirectory() as folder:
        joined = Path(folder, "joined.cpp")
        joined.write_text(join_sources(files, _OWN), encoding="utf-8")
        try:
            CPP.make_library(library, [joined], options)
        except UserError:  # a DeepSpeed whose files are not to be joined so
            CPP.make_library(library, files, options)
