"""The C++ compiler as torch's ninja calls it for a kernel of DeepSpeed's, whose files it compiles as one.

torch's headers are nearly all that a compiler reads of each: 20 s a file, of twelve files of `async_io`. They lie in
`joined.o`, of which the first file's object is a copy, and the others' objects are empty. Where they do not compile as
one, each is compiled by itself. There is no debug information, which takes a third of the time that is left.
"""

import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from zerobench.emulator.compiler import join_sources

COMPILER, JOINED = "REAL_COMPILER", "JOINED_NAME"
"""Environment variables: the compiler, and a name that no other compilation has for what is joined."""

_BUILT = re.compile(r"^build (\S+): compile (.+)$", re.MULTILINE)
_UNGUARDED = (
    "deepspeed_cpu_op.h",
    "deepspeed_aio_thread.h",
    "deepspeed_py_io_handle.h",
    "deepspeed_py_aio_handle.h",
)
"""Headers that may be read once only and do not say so, each before those that read it."""
_OWN = ("world_size", "world_rank", "is_initialized", "c_library_name", "c_block_size", "c_io_queue_depth")
"""What several files of a kernel define, each for itself."""


def main(words: Sequence[str]) -> int:
    """Do what the compiler is asked for; its exit status."""
    recipe, joined = Path("build.ninja"), os.environ.get(JOINED)
    if not joined or not recipe.is_file():
        return _call(words)
    if "-MMD" not in words:
        status = _call(words)
        for path in Path().glob(f"{joined}.*"):
            path.unlink()  # it is linked
        return status
    built = {out: Path(path.replace("$ ", " ")) for out, path in _BUILT.findall(recipe.read_text(encoding="utf-8"))}
    out = words[words.index("-o") + 1]
    if out not in built or not _is_joined(words, list(built.values()), joined):
        return _call(words)
    depends = Path(f"{joined}.d").read_text(encoding="utf-8")
    Path(f"{out}.d").write_text(depends.replace(f"{joined}.o", out).replace(f" {joined}.cpp", ""), encoding="utf-8")
    if out == next(iter(built)):
        return subprocess.call(["cp", f"{joined}.o", out])
    return subprocess.call([os.environ[COMPILER], "-c", "-x", "c++", os.devnull, "-o", out])


def _call(words: Sequence[str]) -> int:
    return subprocess.call([os.environ[COMPILER], *words, "-g0"])


def _is_joined(words: Sequence[str], files: Sequence[Path], joined: str) -> bool:
    """Whether the files compile as one, by the first that asks; the others wait."""
    text, made, failed = (Path(f"{joined}.{ending}") for ending in ("cpp", "o", "failed"))
    with Path(f"{joined}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists() and not failed.exists():
            text.write_text(_text(files), encoding="utf-8")
            changed = {"-MF": f"{joined}.d", "-c": str(text), "-o": str(made)}
            own = [changed.get(before, word) for before, word in zip(["", *words], words, strict=False)]
            if _call([*own, "-w"]):
                failed.touch()
    return not failed.exists()


def _text(files: Sequence[Path]) -> str:
    once = [f'#import "{path}"' for name in _UNGUARDED for path in (files[0].with_name(name),) if path.exists()]
    return "\n".join([*once, join_sources(files, _OWN)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
