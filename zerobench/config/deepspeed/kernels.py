"""DeepSpeed's C++ kernels: those that a trial needs, their place in torch's cache, and those that must be compiled
(minutes each).

Works without torch: the runner has them compiled before its first trial, and a rank reports that it waits for one.
"""

from __future__ import annotations

import contextlib
import os
import re
import traceback
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from zerobench.common.training_python import training_python
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
"""DeepSpeed's builder of each kernel (deepspeed/ops/op_builder), by the kernel's name under torch's extension cache.
The first is loaded by every run on a CPU."""

_STAMPS = {"torch": "version.py", "deepspeed": "git_version_info_installed.py"}
"""Files written when a package is installed: older kernels are compiled again."""

ARCHITECTURES = "TORCH_CUDA_ARCH_LIST"
"""Compute capabilities to compile for, as torch reads them: `8.0;9.0a+PTX`."""
_LETTERED = re.compile(r"(\d{1,3}\.\d{1,3})[a-z](\+PTX)?")
_READER = "compute_capability_args"
"""Function of DeepSpeed's builder that reads them (op_builder/builder.py), on each load of a kernel."""


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
    """Those of `names` that have not been compiled with the installed packages."""
    installed_s = max(map(_installed_at_s, _STAMPS), default=0.0)
    fresh_paths = {name: [path for path in compiled(name, environ) if _made_at_s(path) > installed_s] for name in names}
    return [name for name, paths in fresh_paths.items() if not any(map(_is_of_this_torch, paths))]


def compiled(name: str, environ: Mapping[str, str]) -> list[Path]:
    """Paths of the kernel `name` in torch's cache for the ranks' Python, whether or not they exist."""
    root = build_root(environ)
    if environ.get("TORCH_EXTENSIONS_DIR"):
        return [root / name / f"{name}.so"]
    python = f"py{training_python().tag}{training_python().abi}"
    return [folder / name / f"{name}.so" for folder in root.glob(f"{python}_*")]


def build_root(environ: Mapping[str, str]) -> Path:
    """Folder in which torch compiles extensions (torch/utils/cpp_extension.py, _get_build_directory;
    torch/_appdirs.py).
    """
    named = environ.get("TORCH_EXTENSIONS_DIR")
    cache = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home(), ".cache")
    return Path(named) if named else Path(cache, "torch_extensions")


def name_architectures(environ: MutableMapping[str, str]) -> list[str]:
    """Reduce the architectures in TORCH_CUDA_ARCH_LIST to numbers, and return a note on the change, if any.

    DeepSpeed's builder reads no letters (0.19.8); code for 9.0 runs on `9.0a`.
    """
    value = environ.get(ARCHITECTURES, "")
    names = value.replace(";", " ").split()
    if not any(map(_LETTERED.fullmatch, names)):
        return []
    plain = environ[ARCHITECTURES] = ";".join(dict.fromkeys(_LETTERED.sub(r"\1\2", name) for name in names))
    return [f"{_unread(value)}: its kernels are compiled for {plain}"]


def architectures_unread(error: BaseException, environ: Mapping[str, str]) -> str | None:
    """Remedy if `error` is DeepSpeed's builder failing to read TORCH_CUDA_ARCH_LIST; None for another error."""
    functions = {frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)}
    if not isinstance(error, ValueError) or _READER not in functions:
        return None
    return f"{_unread(environ.get(ARCHITECTURES))}: set it to the GPU's compute capability, such as 9.0"


def _unread(asked: str | None) -> str:
    return f"{ARCHITECTURES} is {asked}, which DeepSpeed's builder cannot read"


def touch(name: str, environ: Mapping[str, str]) -> None:
    """Mark the kernel as usable with the installed packages."""
    for path in compiled(name, environ):
        with contextlib.suppress(OSError):  # not there, or another user's: then it is compiled or looked at again
            os.utime(path)


def _installed_at_s(package: str) -> float:
    folder = package_folder(package)
    return 0.0 if folder is None else _made_at_s(folder / _STAMPS[package])


def _is_of_this_torch(path: Path) -> bool:
    # Torch's ninja recompiles kernels of another environment (`build.ninja` names their torch)
    torch, build = package_folder("torch"), path.with_name("build.ninja")
    return torch is None or not build.exists() or f" {torch}/" in build.read_text(encoding="utf-8").replace("$ ", " ")


def _made_at_s(path: Path) -> float:
    """Unix time of the last change; -1 if the file does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return -1.0
