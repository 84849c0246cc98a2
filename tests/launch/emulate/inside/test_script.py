"""A user's script runs as Python would run it."""

import subprocess
import sys

import pytest

PLAY = """
import sys
from zerobench.launch.emulate.inside.script import Kind, Script, run, tell
try:
    run(Script(Kind(sys.argv[1]), sys.argv[2], tuple(sys.argv[3:])))
except Exception as error:
    print("told:", tell(error))
"""
SAYS = """
import os, sys, helper
print(__name__, sys.argv, os.path.basename(sys.path[0]), sys.modules["__main__"].__name__)
"""


def play(cwd, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", PLAY, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "helper.py").write_text("")
    (folder / "train.py").write_text(SAYS)
    (folder / "broken.py").write_text("def main():\n    raise ValueError('one\\ntwo')\nmain()\n")
    return folder


def test_a_file_finds_what_lies_beside_it_and_its_arguments(project):
    out, _ = play(project.parent, "file", "project/train.py", "--lr", "1")
    assert out == "__main__ ['project/train.py', '--lr', '1'] project __main__"


def test_a_module_is_run_from_the_working_folder(project):
    out, _ = play(project, "module", "train", "x")
    assert out.startswith("__main__ [")
    assert out.endswith("project __main__")


def test_a_traceback_begins_at_the_script(project):
    out, err = play(project, "file", "broken.py")
    assert out == "told: ValueError: one"
    assert err.startswith('Traceback (most recent call last):\n  File "broken.py", line 3')
    assert "zerobench" not in err
