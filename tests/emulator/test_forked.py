"""A fork of a process with torch ends as a process of its own would: what fails in one is not taken for done."""

import os
import subprocess
from collections.abc import Mapping

import pytest

from tests.tools.forked_zerobench import LAUNCHER


@pytest.mark.parametrize(
    ("program", "code", "printed", "last_line"),
    [
        ("import sys; print(sys.argv)", 0, "['-c', 'a']\n", ""),
        ("import sys; sys.exit()", 0, "", ""),
        ("import sys; sys.exit(3)", 3, "", ""),
        ("import atexit; atexit.register(print, 'bye'); 1 / 0", 1, "bye\n", "ZeroDivisionError: division by zero"),
        ("import os; os.kill(os.getpid(), 9)", 128 + 9, "", ""),
    ],
)
def test_it_ends_as_a_process_does(
    forked_scripts: Mapping[str, str], program: str, code: int, printed: str, last_line: str
) -> None:
    command = [*LAUNCHER, "-c", program, "a"]
    done = subprocess.run(
        command, env={**os.environ, **forked_scripts}, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (code, printed)
    assert done.stderr.strip().splitlines()[-1:] == ([last_line] if last_line else [])
