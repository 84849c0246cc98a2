"""A kernel's files, compiled as one, are the library that they are one by one; where that fails they are just those."""

import os
import shutil
import subprocess
import sys
from ctypes import CDLL
from pathlib import Path

import pytest

from tests.tools.joined_compiler import COMPILER, JOINED
from tests.tools.known import known

WRAPPER = Path(__file__).with_name("tools") / "compiler" / "c++"
HEADER = "struct One { int value; };\n"
FILES = {
    "deepspeed_py_io_handle.h": HEADER,  # nothing says that it may be read once only
    "first.cpp": '#include "deepspeed_py_io_handle.h"\nstatic int world_size = 2;\n'
    'int other();\nextern "C" int sum() { return One{world_size}.value + other(); }\n',
    "second.cpp": '#include "deepspeed_py_io_handle.h"\nstatic int world_size = 3;\n'
    "int other() { return One{world_size}.value; }\n",
}
OBJECTS = {"first.o": "first.cpp", "second.o": "second.cpp"}


@pytest.mark.parametrize(("added", "joined"), [("", True), ("struct One { int value; };", False)])
def test_files_compile_as_one_where_they_can_and_each_by_itself_where_not(
    tmp_path: Path, added: str, joined: bool
) -> None:
    files = FILES | {"second.cpp": FILES["second.cpp"] if joined else f"{added}\nint other() {{ return 3; }}\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    recipe = [f"build {out}: compile {tmp_path / name}" for out, name in OBJECTS.items()]
    (tmp_path / "build.ninja").write_text("\n".join(recipe), encoding="utf-8")
    for out, name in OBJECTS.items():
        call(tmp_path, "-MMD", "-MF", f"{out}.d", "-fPIC", "-c", str(tmp_path / name), "-o", out)
        depends = (tmp_path / f"{out}.d").read_text(encoding="utf-8").replace("\\\n", " ").split()
        assert depends[0] == f"{out}:"
        assert set(map(Path, depends[1:])) <= {tmp_path / name for name in files}  # what stays, as ninja looks for it
        assert len(depends) == 1 + len(files) or not joined
    call(tmp_path, *OBJECTS, "-shared", "-o", "all.so")
    assert CDLL(str(tmp_path / "all.so")).sum() == 5
    assert list(tmp_path.glob("joined*")) == []
    assert ("other" in symbols(tmp_path / "second.o")) is not joined


def call(folder: Path, *words: str) -> None:
    environ = {COMPILER: known(shutil.which("c++")), JOINED: "joined-1", "JOINING_PYTHON": sys.executable}
    subprocess.run([WRAPPER, *words], cwd=folder, env={**os.environ, **environ}, check=True)


def symbols(path: Path) -> str:
    return subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
