"""What a machine's compilers cannot do is said in one line."""

import ctypes

import pytest

from zerobench.common.errors import UserError
from zerobench.emulator.compiler import CPP, C


def test_a_machine_without_a_compiler_is_told_so(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match=r"^emulator: no C compiler \(cc, gcc, clang\) on PATH; .*: apt install gcc$"):
        C.find()
    with pytest.raises(UserError, match=r"^emulator: no C\+\+ compiler \(c\+\+, g\+\+, clang\+\+\) on PATH; .*g\+\+$"):
        CPP.find()


@pytest.mark.parametrize(("compiler", "suffix", "before"), [(C, "c", ""), (CPP, "cpp", 'extern "C" ')])
def test_both_languages_become_libraries_or_a_line_with_the_first_error(tmp_path, compiler, suffix, before):
    source, out = tmp_path / f"one.{suffix}", tmp_path / "libone.so"
    source.write_text(f"{before}int answer(void) {{ return ANSWER; }}\n")
    compiler.make_library(out, [source], ["-DANSWER=42"])
    assert ctypes.CDLL(str(out)).answer() == 42
    with pytest.raises(UserError, match=r"^emulator: \S+ cannot build libtwo\.so: .*error.*ANSWER"):
        compiler.make_library(tmp_path / "libtwo.so", [source], [])
