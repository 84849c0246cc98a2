"""DeepSpeed's C++ kernels: which ones a trial needs, where torch keeps them, and which must be compiled (minutes each).

Said without torch: the runner has them compiled before its first trial, and a rank says that it waits for one.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from zerobench.config.deepspeed.reading import made_by
from zerobench.config.hardware.toolchain import package_folder
from zerobench.config.trial.optimizers import OPTIMIZERS

BUILDERS = {
    "deepspeed_shm_comm": "ShareMemCommBuilder",
    **{
        info.deepspeed.kernel: info.deepspeed.builder
        for info in OPTIMIZERS.values()
        if info.deepspeed is not None and info.deepspeed.kernel and info.deepspeed.builder
    },
    "async_io": "AsyncIOBuilder",
    "quantizer": "QuantizerBuilder",
}
"""DeepSpeed's builder of each kernel (deepspeed/ops/op_builder), by the kernel's name under torch's extension cache;
first the one that every run on a CPU loads."""

_STAMPS = {"torch": "version.py", "deepspeed": "git_version_info_installed.py"}
"""Files that installing a package writes: kernels that are older are compiled anew."""

ARCHITECTURES = "TORCH_CUDA_ARCH_LIST"
"""Compute capabilities to compile for, as torch reads them: `8.0;9.0a+PTX`."""
_LETTERED = re.compile(r"(\d{1,3}\.\d{1,3})[a-z](\+PTX)?")
_READER = "compute_capability_args"
"""What reads them in DeepSpeed's builder (op_builder/builder.py), every time that a kernel is loaded."""


def needed(ds_config: Mapping[str, Any], *, is_cuda: bool) -> list[str]:
    """Names of the kernels that an engine under `ds_config` loads."""
    zero = ds_config.get("zero_optimization", {})
    offload = zero.get("offload_optimizer", {}).get("device", "none")
    on_nvme = "nvme" in {offload, zero.get("offload_param", {}).get("device", "none")}
    optimizer = made_by(ds_config)
    names = []
    if ds_config and not is_cuda:
        names.append("deepspeed_shm_comm")  # comm/torch.py loads it on every CPU run, alone or not
    if optimizer is not None and optimizer.kernel is not None:
        names.append(optimizer.kernel)
    if on_nvme:
        names.append("async_io")
    if zero.get("zero_quantized_weights") or zero.get("zero_quantized_gradients"):
        names.append("quantizer")
    return names


def missing(names: Iterable[str], environ: Mapping[str, str]) -> list[str]:
    """Those of `names` that nobody has compiled with the packages that are installed now."""
    installed_s = max(map(_installed_at_s, _STAMPS), default=0.0)
    made = {name: [path for path in compiled(name, environ) if _made_at_s(path) > installed_s] for name in names}
    return [name for name, paths in made.items() if not any(map(_is_of_this_torch, paths))]


def compiled(name: str, environ: Mapping[str, str]) -> list[Path]:
    """Where torch keeps the kernel `name` for this Python, whether or not it is there."""
    root = build_root(environ)
    if environ.get("TORCH_EXTENSIONS_DIR"):
        return [root / name / f"{name}.so"]
    python = f"py{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}"
    return [folder / name / f"{name}.so" for folder in root.glob(f"{python}_*")]


def build_root(environ: Mapping[str, str]) -> Path:
    """Where torch compiles extensions (torch/utils/cpp_extension.py, _get_build_directory; torch/_appdirs.py)."""
    named = environ.get("TORCH_EXTENSIONS_DIR")
    cache = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home(), ".cache")
    return Path(named) if named else Path(cache, "torch_extensions")


def name_architectures(environ: MutableMapping[str, str]) -> list[str]:
    """Let TORCH_CUDA_ARCH_LIST name architectures by numbers alone, and say so where it did not: `9.0a` is 9.0, whose
    code runs there, but DeepSpeed's builder reads no letters (0.19.8).
    """
    asked = environ.get(ARCHITECTURES, "")
    names = asked.replace(";", " ").split()
    if not any(map(_LETTERED.fullmatch, names)):
        return []
    plain = environ[ARCHITECTURES] = ";".join(dict.fromkeys(_LETTERED.sub(r"\1\2", name) for name in names))
    return [f"{_unread(asked)}: its kernels are compiled for {plain}"]


def architectures_unread(error: BaseException, environ: Mapping[str, str]) -> str | None:
    """What to do where `error` is that of DeepSpeed's builder reading TORCH_CUDA_ARCH_LIST; None: it is another."""
    functions = {frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)}
    if not isinstance(error, ValueError) or _READER not in functions:
        return None
    return f"{_unread(environ.get(ARCHITECTURES))}: set it to the GPU's compute capability, such as 9.0"


def _unread(asked: str | None) -> str:
    return f"{ARCHITECTURES} is {asked}, which DeepSpeed's builder cannot read"


def touch(name: str, environ: Mapping[str, str]) -> None:
    """Note that the kernel was found to do for the packages that are installed now."""
    for path in compiled(name, environ):
        with contextlib.suppress(OSError):  # not there, or another user's: then it is compiled or looked at again
            os.utime(path)


def _installed_at_s(package: str) -> float:
    folder = package_folder(package)
    return 0.0 if folder is None else _made_at_s(folder / _STAMPS[package])


def _is_of_this_torch(path: Path) -> bool:
    """Whether the kernel was compiled in this environment: torch's ninja takes another's for stale (`build.ninja`)."""
    torch, build = package_folder("torch"), path.with_name("build.ninja")
    return torch is None or not build.exists() or f" {torch}/" in build.read_text(encoding="utf-8").replace("$ ", " ")


def _made_at_s(path: Path) -> float:
    """Unix time of the last change; before everything where there is no such file."""
    try:
        return path.stat().st_mtime
    except OSError:
        return -1.0
