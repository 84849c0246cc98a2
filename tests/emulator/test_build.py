"""Stand-ins are made of what a torch at hand wants: a small library of the same kind shows it without a download."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from zerobench.common.errors import UserError
from zerobench.emulator import build as builder
from zerobench.emulator.build import declared_functions, sources_digest, stem_of, wanted_libraries
from zerobench.emulator.compiler import C
from zerobench.emulator.elf import wanted_by


def compiled(out: Path, source: str, *options: str) -> Path:
    """A shared library of this C."""
    c = out.with_suffix(".c")
    c.write_text(source)
    subprocess.run([C.find(), "-shared", "-fPIC", "-o", out, c, *options], check=True, cwd=out.parent)
    return out


@pytest.fixture
def torch_lib(tmp_path: Path) -> Path:
    """A folder as torch/lib: one library linked with a versioned cuBLAS, a cuBLASLt and a NCCL without versions."""
    (tmp_path / "map").write_text("libcublas.so.13 { global: cublasCreate_v2; cublasNew; };\n")
    soname = "-Wl,-soname,"
    compiled(
        tmp_path / "libcublas.so.13",
        "int cublasCreate_v2(void){return 1;} int cublasNew(void){return 1;}",
        f"{soname}libcublas.so.13",
        "-Wl,--version-script=map",
    )
    compiled(tmp_path / "libcublasLt.so.13", "int cublasLtCreate(void){return 1;}", f"{soname}libcublasLt.so.13")
    compiled(tmp_path / "libnccl.so.2", "int ncclNew(void){return 1;}", f"{soname}libnccl.so.2")
    lib = tmp_path / "lib"
    lib.mkdir()
    source = """int cublasCreate_v2(void**); int cublasNew(void); int cublasLtCreate(void**); int ncclNew(void);
    int all(void) { void *a, *b; return cublasCreate_v2(&a) + cublasLtCreate(&b) + cublasNew() + ncclNew(); }"""
    linked = ["../libcublas.so.13", "../libcublasLt.so.13", "../libnccl.so.2"]
    compiled(lib / "libtorch_cuda.so", source, *linked)
    (tmp_path / "lib" / "libtorch_cuda.c").unlink()
    return lib


def test_a_librarys_wants_are_read_with_their_versions(torch_lib: Path) -> None:
    wanted = wanted_by(torch_lib / "libtorch_cuda.so")
    assert {"libcublas.so.13", "libcublasLt.so.13", "libnccl.so.2"} <= set(wanted.libraries)
    assert {("cublasNew", "libcublas.so.13"), ("cublasLtCreate", ""), ("ncclNew", "")} <= wanted.symbols


def test_each_symbol_goes_to_the_library_that_is_named_for_it(torch_lib: Path) -> None:
    assert wanted_libraries(torch_lib) == {
        "libcublas.so.13": {"cublasCreate_v2": "libcublas.so.13", "cublasNew": "libcublas.so.13"},
        "libcublasLt.so.13": {"cublasLtCreate": ""},
        "libnccl.so.2": {"ncclNew": ""},
        "libcuda.so.1": {},
        "libnvidia-ml.so.1": {},
    }


def test_what_our_c_defines_comes_before_what_is_generated(torch_lib: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(builder, "_OPENED", ())  # the driver needs CUDA's headers
    monkeypatch.setattr(builder, "build_values", lambda *_: None, raising=False)  # C++ needs torch's headers
    needs_no_headers = [file for file in builder._CORE_FILES if file != "attributes.c"]
    monkeypatch.setattr(builder, "_CORE_FILES", needs_no_headers)
    builder.build(torch_lib, tmp_path, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "libcublas.so.13",
        "libcublasLt.so.13",
        "libnccl.so.2",
        "libzerobench_gpu.so",
    ]
    loaded = ctypes.CDLL(str(tmp_path / "out" / "libcublas.so.13"))
    handle = ctypes.c_void_p()
    assert loaded.cublasCreate_v2(ctypes.byref(handle)) == 0
    assert handle.value
    assert loaded.cublasNew() == 0
    program = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).all())"
    command = [sys.executable, "-c", program, str(torch_lib / "libtorch_cuda.so")]
    for folder, status in ((tmp_path, 4), (tmp_path / "out", 0)):  # those that it was linked with all return 1
        assert subprocess.run(command, env={"LD_LIBRARY_PATH": str(folder)}, check=False).returncode == status


def test_the_functions_of_a_header_are_those_that_it_declares_and_what_it_renames_them_to(tmp_path: Path) -> None:
    header = tmp_path / "cuda.h"
    header.write_text(
        "#define cuMemAlloc  cuMemAlloc_v2\n"
        "#define cuStreamX __CUDA_API_PTSZ(cuStreamX_v3)\n"
        "CUresult CUDAAPI cuMemAlloc(CUdeviceptr *dptr, size_t bytesize);\n"
        "CUresult CUDAAPI cuInit(unsigned int Flags);\ntypedef struct custom CUcustom;\n"
    )
    assert declared_functions(header, "cu") == {"cuMemAlloc", "cuMemAlloc_v2", "cuStreamX_v3", "cuInit"}


@pytest.mark.parametrize(
    ("so", "stem"),
    [("libcudart.so.13", "cudart"), ("libnvshmem_host.so.3", "nvshmem_host"), ("libc.so.6", "libc.so.6")],
)
def test_the_stem_of_a_library_is_its_name_without_its_version(so: str, stem: str) -> None:
    assert stem_of(so) == stem


def test_stand_ins_are_of_one_state_of_the_sources(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "one.c").write_text("int a;")
    monkeypatch.setattr(builder, "SOURCES", tmp_path)
    before = sources_digest()
    (tmp_path / "one.c").write_text("int b;")
    assert sources_digest() != before


def test_a_file_that_does_not_compile_is_one_line_with_the_compilers_error(torch_lib, tmp_path, monkeypatch) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "gpu.c").write_text("int x = undeclared;\n")
    monkeypatch.setattr(builder, "SOURCES", tmp_path / "c")
    monkeypatch.setattr(builder, "_CORE_FILES", ("gpu.c",))
    with pytest.raises(UserError, match=r"^emulator: .* cannot build libzerobench_gpu\.so: .*undeclared"):
        builder.build(torch_lib, tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "libtorch.so").write_bytes(b"not one")
    with pytest.raises(UserError, match=r"libtorch\.so: not a library for 64-bit Linux$"):
        wanted_by(tmp_path / "libtorch.so")


def test_stand_ins_are_of_the_releases_of_cudnn_and_nccl_that_torch_asks_for(
    torch_lib: Path, tmp_path: Path, monkeypatch
) -> None:
    """As their own headers number them: cuDNN 9.10.2 is 91002, NCCL 2.27.3 is 22703 (cudnn_version.h, nccl.h)."""
    about = tmp_path / "torch-2.9.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Name: torch\nRequires-Dist: nvidia-cublas-cu13==13.0.0.19\n"
        "Requires-Dist: nvidia-cudnn-cu13==9.10.2.21; platform_system == 'Linux'\n"
        "Requires-Dist: nvidia-nccl-cu13==2.27.3\n"
    )
    lib = tmp_path / "torch" / "lib"
    lib.parent.mkdir()
    torch_lib.rename(lib)
    options: dict[str, list[str]] = {}
    monkeypatch.setattr(builder, "_OPENED", ())
    monkeypatch.setattr(builder, "build_values", lambda *_: None, raising=False)
    monkeypatch.setattr(type(C), "make_library", lambda _, out, _files, given: options.update({out.name: list(given)}))
    builder.build(lib, tmp_path, tmp_path / "out")
    defined = {name: [one for one in given if one.startswith("-DZB_")] for name, given in options.items()}
    numbers = ["-DZB_CUDNN_VERSION=91002", "-DZB_NCCL_VERSION=22703"]
    libraries = ("libcublas.so.13", "libcublasLt.so.13", "libnccl.so.2")
    assert defined == {builder.CORE: []} | dict.fromkeys(libraries, numbers)
