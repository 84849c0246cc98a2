"""Making an environment: its commands against a golden file, going on where it was left, and errors in one line."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path

import pytest

from zerobench.environments import PACKAGES, Environment, environment
from zerobench.errors import UserError
from zerobench.running import environment_setup
from zerobench.running.environment_setup import HOROVOD, requirements, set_up, steps, unpack_and_patch
from zerobench.running.setup_steps import Step

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", list(PACKAGES))
def test_the_commands_that_make_an_environment_are_the_golden_ones(name, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/venv/bin/python")
    monkeypatch.setattr(environment_setup, "requirements", lambda _: Path("/dev/null"))
    lines = []
    for step in steps(Environment(name, Path(f"/environments/{name}")), jobs=4):
        lines += [f"{step.name}:", *(f"  {key}={value}" for key, value in step.added.items())]
        lines += [f"  {argument}" for argument in step.argv]
    assert "\n".join(lines) + "\n" == (GOLDEN / f"setup_{name}.txt").read_text()


@pytest.mark.parametrize("name", list(PACKAGES))
def test_every_package_of_an_environment_is_pinned(name):
    pins = [line for line in requirements(name).read_text().splitlines() if not line.startswith("#")]
    assert len(pins) > 10
    assert [pin for pin in pins if pin.count("==") != 1] == []


def source(folder: Path, text: str) -> Path:
    """Horovod's source archive in `folder`, whose build files say `text`."""
    with tarfile.open(folder / f"horovod-{HOROVOD}.tar.gz", "w:gz") as archive:
        for name in ("CMakeLists.txt", "horovod/torch/CMakeLists.txt"):
            member = tarfile.TarInfo(f"horovod-{HOROVOD}/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return folder / f"horovod-{HOROVOD}"


def test_horovods_source_is_patched_to_be_built_as_cpp_17(tmp_path):
    unpacked = source(tmp_path, "set(CMAKE_CXX_STANDARD 14)\n")
    unpack_and_patch(tmp_path)
    for path in (unpacked / "CMakeLists.txt", unpacked / "horovod/torch/CMakeLists.txt"):
        assert path.read_text() == "set(CMAKE_CXX_STANDARD 17)\n"


def test_a_source_that_the_patch_is_not_for_is_refused(tmp_path):
    source(tmp_path, "set(CMAKE_CXX_STANDARD 20)\n")
    with pytest.raises(UserError, match="not the source of"):
        unpack_and_patch(tmp_path)


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Makes an environment out of steps that are given as Python programs; what it said."""

    def run(**programs: str) -> list[str]:
        todo = [Step(name, [sys.executable, "-c", program]) for name, program in programs.items()]
        monkeypatch.setattr(environment_setup, "steps", lambda _own, _jobs: todo)
        said: list[str] = []
        set_up("horovod", tmp_path, said.append)
        return said

    return run


def test_setup_goes_on_at_the_step_that_failed_and_says_why_in_one_line(make, tmp_path):
    own = environment("horovod", tmp_path)
    with pytest.raises(UserError, match=r"^setup horovod: build failed with 1: no compiler; see .*build\.txt$"):
        make(packages="", build="raise SystemExit('no compiler')", check="")
    assert not own.made.exists()
    said = make(packages="", build="pass", check="")
    assert "  packages: already done" in said
    assert "  build: already done" not in said
    assert json.loads(own.made.read_text())["made_at_s"] > 0


def test_a_step_that_has_changed_is_done_again_with_all_that_follow_and_the_check_always(make):
    make(packages="", build="", check="")
    assert [line for line in make(packages="", build="", check="") if "already done" in line] == [
        "  packages: already done",
        "  build: already done",
    ]
    assert [line for line in make(packages="pass", build="", check="") if "already done" in line] == []


def test_a_folder_other_than_the_usual_one_is_told_how_to_be_used(make, tmp_path):
    assert make(check="")[-1] == f"to use it: export ZEROBENCH_ENVIRONMENTS={tmp_path}"


def test_an_environment_that_nobody_knows_is_refused_with_the_choices(tmp_path):
    with pytest.raises(UserError, match=r"NAME: 'horovd' .*did you mean 'horovod'"):
        set_up("horovd", tmp_path, print)
