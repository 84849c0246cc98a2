"""Builds the stand-ins: one shared library for each of NVIDIA's that torch is linked with, from our C (c/).

Functions that our C does not define are generated, as weak symbols, so that ours take precedence. In compute libraries,
every symbol that torch's files need returns 0, success, unless it would return a size, which is unknown here; those
return "not supported", as do all other declared functions of CUDA's runtime and driver. A symbol that torch does not
need is missing: a program that needs one fails at its start.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from zerobench.emulator.compiler import CPP, C, digest_of, find_compilers
from zerobench.emulator.elf import wanted_by

SOURCES = Path(__file__).parent / "c"
CORE = "libzerobench_gpu.so"
"""Library shared by all others: facts of the device, its memory and its account."""

VALUES_VARIABLE = "ZEROBENCH_EMULATED_VALUES"
"""Environment variable with the library of computed values, for processes on an emulated GPU."""
VALUES = "zerobench_values.so"
"""No prefix `lib`: libraries with it are loaded before torch (Emulator.variables), and this one needs torch."""
VALUES_SOURCES = Path(__file__).parent / "cpp"

_BUILDERS = ("build.py", "compiler.py")
_CORE_FILES = ("gpu.c", "account.c", "memory.c", "attributes.c", "waits.c")
_FILES: Mapping[str, tuple[str, ...]] = {
    "cudart": ("device.c", "copies.c", "pools.c", "streams.c", "kernels.c"),
    "cuda": ("driver.c",),
    "nccl": ("nccl.c",),
    "cublas": ("blas.c",),
    "cublasLt": ("blas_lt.c",),
    "cudnn": ("dnn.c", "rnn.c"),
    "cusolver": ("others.c",),
    "cusparse": ("others.c",),
    "cupti": ("others.c",),
    "nvrtc": ("others.c",),
    "nvidia-ml": ("nvml.c",),
}
"""Our C files, by library."""

_PREFIXES: Mapping[str, str] = {"cufile": "cuFile", "nvshmem_host": "nvshmem"}
"""Prefix of a library's symbols, if it is not its name."""

_STEM = re.compile(r"lib((?:cu|nccl|nv)[\w-]*)\.so\.\d+")
_OPENED = ("libcuda.so.1", "libnvidia-ml.so.1")
_NOT_SUPPORTED: Mapping[str, int] = {"cudart": 801, "cuda": 801, "cusolver": 9, "cusparse": 10, "cufft": 16}
"""Status for "not supported" in each library's headers."""
_GIVES_A_SIZE = re.compile(r"buffersize|makeplan", re.IGNORECASE)


def sources_digest() -> str:
    """Digest of our C and C++ and of the modules that build them: stand-ins are rebuilt when it changes."""
    builders = [Path(__file__).parent / name for name in _BUILDERS]
    return digest_of([*sorted(SOURCES.iterdir()), *sorted(VALUES_SOURCES.iterdir()), *builders])


def build(torch_lib: Path, include: Path, out: Path) -> None:
    """Build the stand-ins for the torch with libraries in `torch_lib` into `out`, completely or not at all.

    Raises UserError: no compiler, torch's libraries cannot be read, or a file does not compile.
    """
    find_compilers()
    libraries = wanted_libraries(torch_lib)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as name:
        work = Path(name)
        made = work / "made"
        made.mkdir()
        _compile(made / CORE, [SOURCES / file for file in _CORE_FILES], ["-I", str(include)])
        options = ["-I", str(include), *_versions(torch_lib)]
        for so, symbols in libraries.items():
            _one(so, symbols, include, work, options)
        build_values(torch_lib, made / VALUES)
        try:
            made.replace(out)
        except OSError:  # another process was first
            if not (out / CORE).is_file():
                raise


def build_values(torch_lib: Path, out: Path) -> None:
    """Build the rule of computed values (cpp/) into `out`, for the torch with libraries in `torch_lib`.

    Raises UserError: it does not compile.
    """
    headers = ["-I", str(torch_lib.parent / "include")]
    torch = [f"-L{torch_lib}", "-lc10", "-ltorch_cpu"]
    CPP.make_library(out, [VALUES_SOURCES / "values.cpp"], ["-O1", "-std=c++20", *headers, *torch])


def wanted_libraries(torch_lib: Path) -> dict[str, dict[str, str]]:
    """NVIDIA's libraries that torch's in `torch_lib` need, by name: their symbols, each with its version.

    torch is not linked with the driver and NVML but opens them at run time, so they have no symbols here.
    """
    needs = [wanted_by(path) for path in sorted(torch_lib.glob("lib*.so"))]
    names = sorted({so for library in needs for so in library.libraries if _STEM.fullmatch(so)})
    libraries: dict[str, dict[str, str]] = {so: {} for so in [*names, *_OPENED]}
    # cublasLt before cublas: the longest prefix that fits has the symbol.
    stems = ((stem_of(so), so) for so in names)
    prefixes = sorted(((_PREFIXES.get(stem, stem), so) for stem, so in stems), key=lambda pair: -len(pair[0]))
    for symbol, version in sorted({pair for library in needs for pair in library.symbols}):
        so = version if version in libraries else next((s for p, s in prefixes if symbol.startswith(p)), None)
        if so is not None:
            libraries[so][symbol] = version
    return libraries


def stem_of(so: str) -> str:
    """Stem of a library's name: `cudart` for `libcudart.so.13`."""
    match = _STEM.fullmatch(so)
    return match[1] if match else so


def declared_functions(header: Path, prefix: str) -> set[str]:
    """Names in `header` that begin with `prefix` and a capital: functions, and the targets of their macros."""
    text = header.read_text(encoding="utf-8", errors="replace")
    declared = set(re.findall(rf"\b({prefix}[A-Z]\w*)\s*\(", text))
    renamed = re.findall(rf"#\s*define\s+{prefix}[A-Z]\w*\s+(?:__\w+\()?({prefix}[A-Z]\w*)", text)
    return declared | set(renamed)


def _one(so: str, symbols: Mapping[str, str], include: Path, work: Path, options: list[str]) -> None:
    stem = stem_of(so)
    refused = {name for name in symbols if _GIVES_A_SIZE.search(name)} if stem in _NOT_SUPPORTED else set()
    if stem == "cudart":
        refused = {*symbols, *declared_functions(include / "cuda_runtime_api.h", "cuda")}
    elif stem == "cuda":
        refused = declared_functions(include / "cuda.h", "cu")
    generated = work / f"{so}.c"
    text = _weak(symbols.keys() - refused, 0) + _weak(refused, _NOT_SUPPORTED.get(stem, 0))
    generated.write_text(text, encoding="utf-8")
    script = work / f"{so}.map"
    script.write_text(_version_script(so if stem == "cudart" else None, symbols), encoding="utf-8")
    versioned = [f"-Wl,--version-script={script}"] if script.stat().st_size else []
    core = [*options, f"-L{work / 'made'}", "-lzerobench_gpu", "-Wl,-rpath,$ORIGIN", "-ldl"]
    files = [SOURCES / file for file in _FILES.get(stem, ())]
    _compile(work / "made" / so, [*files, generated], [*versioned, *core])


def _versions(torch_lib: Path) -> list[str]:
    """Compiler options with the releases of cuDNN and NCCL in torch's METADATA.

    torch refuses a cuDNN older than the one that it was compiled with, and selects attention kernels by its version.
    """
    options = []
    for file in torch_lib.parent.parent.glob("torch-*.dist-info/METADATA"):
        text = file.read_text(encoding="utf-8", errors="replace")
        for name in ("cudnn", "nccl"):
            match = re.search(rf"^Requires-Dist: nvidia-{name}-cu\d+==(\d+)\.(\d+)\.(\d+)", text, re.MULTILINE)
            if match:
                major, minor, patch = map(int, match.groups())
                options.append(f"-DZB_{name.upper()}_VERSION={major * 10000 + minor * 100 + patch}")
    return options


def _weak(names: Iterable[str], value: int) -> str:
    """Functions that return `value` unless another file defines them."""
    return "".join(f"__attribute__((weak)) long {name}(void) {{ return {value}; }}\n" for name in sorted(names))


def _version_script(every: str | None, symbols: Mapping[str, str]) -> str:
    if every is not None:
        return f"{every} {{ global: *; }};\n"
    versions: dict[str, list[str]] = {}
    for symbol, version in symbols.items():
        if version:
            versions.setdefault(version, []).append(symbol)
    return "".join(f"{version} {{ global: {'; '.join(names)}; }};\n" for version, names in versions.items())


def _compile(out: Path, files: Iterable[Path], options: Iterable[str]) -> None:
    C.make_library(out, files, ["-O2", "-pthread", "-D_GNU_SOURCE", *options])
