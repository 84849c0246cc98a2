"""Making an environment: its commands against a golden file, going on where it was left, and errors in one line."""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from zerobench.common.environments import PACKAGES, Environment, environment
from zerobench.common.errors import UserError
from zerobench.common.resources import shipped
from zerobench.emulator.downloads import INDEX_CUDA
from zerobench.launch.machine.installed import requirement
from zerobench.launch.machine.tried_versions import TRIED
from zerobench.launch.setup import environment_setup
from zerobench.launch.setup.environment_setup import HOROVOD, set_up, steps, unpack_and_patch
from zerobench.launch.setup.setup_steps import Step

GOLDEN = Path(__file__).parents[1] / "run" / "golden"


@pytest.mark.parametrize("name", list(PACKAGES))
def test_the_commands_that_make_an_environment_are_the_golden_ones(name, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/venv/bin/python")
    monkeypatch.setattr(environment_setup, "requirements", lambda _: Path("/dev/null"))
    lines = []
    for step in steps(Environment(name, Path(f"/environments/{name}")), jobs=4):
        lines += [f"{step.name}:", *(f"  {key}={value}" for key, value in step.added.items())]
        lines += [f"  {argument}" for argument in step.command]
    assert "\n".join(lines) + "\n" == (GOLDEN / f"setup_{name}.txt").read_text()


PINS = sorted(shipped("requirements").rglob("*.txt"))
PIN = re.compile(r"[\w.-]+==[\w.]+( \\\n    --hash=sha256:[0-9a-f]{64})+")


@pytest.mark.parametrize("file", PINS, ids=lambda path: path.stem)
def test_everything_that_setup_downloads_is_one_version_with_hashes(file):
    text = re.sub(r"^#.*\n", "", file.read_text(), flags=re.MULTILINE)
    assert len(PIN.findall(text)) >= 1
    assert PIN.sub("", text).strip() == ""


def test_pins_are_there_for_each_environment_and_each_torch_that_zerobench_supports():
    names = {path.relative_to(shipped("requirements")).with_suffix("").as_posix() for path in PINS}
    torches = {f"emulator/torch-{release}" for release in ("2.11.0", "2.12.0", "2.12.1", "2.13.0")}
    assert names >= {*PACKAGES, "horovod-source", f"emulator/cuda-{INDEX_CUDA}", *torches}
    assert TRIED["torch"] == ("2.11", "2.13")  # a newer one needs a file of its own
    assert requirement("torch") == "torch>=2.11"


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


def test_a_step_whose_folder_was_removed_is_done_again_with_all_that_follow(monkeypatch, tmp_path):
    makes = f"import pathlib; pathlib.Path({str(tmp_path / 'lib')!r}).mkdir()"
    todo = [
        Step("install", [sys.executable, "-c", makes], clears=tmp_path / "lib"),
        Step("build", [sys.executable, "-c", ""]),
    ]
    monkeypatch.setattr(environment_setup, "steps", lambda _own, _jobs: todo)
    said: list[str] = []
    for _ in range(2):
        set_up("horovod", tmp_path, said.append)
    assert [line for line in said if "already" in line] == ["  install: already done", "  build: already done"]
    (tmp_path / "lib").rmdir()
    said.clear()
    set_up("horovod", tmp_path, said.append)
    assert [line for line in said if "already" in line] == []
    assert (tmp_path / "lib").is_dir()


def test_a_step_is_the_same_by_another_interpreter_and_with_more_compilers():
    def step(python: str, jobs: int) -> Step:
        return Step("build", [python, "-m", "pip", "install", "x"], {"MAKEFLAGS": f"-j{jobs}"})

    assert step("/one/bin/python", 1).digest == step("/two/bin/python", 8).digest
    assert Step("build", ["/one/bin/python", "-m", "pip", "install", "y"]).digest != step("/one/bin/python", 1).digest


def wheel(folder: Path) -> Path:
    """A wheel of one empty module."""
    path = folder / "fable-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("fable.py", "")
        archive.writestr("fable-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: fable\nVersion: 1.0\n")
        archive.writestr("fable-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("fable-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Sets up an environment of one wheel, of which `hashes` are listed."""
    made = wheel(tmp_path)

    def run(*hashes: str) -> Path:
        pins = tmp_path / "pins.txt"
        pins.write_text(" \\\n".join(["fable==1.0", *(f"    --hash=sha256:{one}" for one in hashes)]) + "\n")
        target = Path(tmp_path / "installed")
        pip = [sys.executable, "-m", "pip", "--isolated", "install", "--no-index", "--find-links", str(tmp_path)]
        step = Step("packages", [*pip, "--target", str(target)], requirements=pins, clears=target)
        monkeypatch.setattr(environment_setup, "steps", lambda _own, _jobs: [step])
        set_up("horovod", tmp_path, print)
        return target

    return run, hashlib.sha256(made.read_bytes()).hexdigest()


def test_a_package_with_a_listed_hash_is_installed(install):
    run, found = install
    assert (run("0" * 64, found) / "fable.py").exists()


def test_a_package_whose_hash_is_not_listed_is_refused_in_one_line_and_not_installed(install, tmp_path):
    run, found = install
    with pytest.raises(UserError) as refused:
        run("0" * 64, "1" * 64)
    assert str(refused.value) == (
        "setup horovod: packages failed with 1: fable==1.0: the downloaded file has sha256 "
        f"{found}, which is not listed for it; see {tmp_path}/horovod/logs/packages.txt"
    )
    assert not (tmp_path / "installed" / "fable.py").exists()


def test_a_package_without_any_hash_is_refused(install):
    run, _ = install
    with pytest.raises(UserError, match=r"^setup horovod: packages failed with 1: .*\S; see "):
        run()


def test_a_folder_other_than_the_usual_one_is_told_how_to_be_used(make, tmp_path):
    assert make(check="")[-1] == f"to use it: export ZEROBENCH_ENVIRONMENTS={tmp_path}"


def test_an_environment_that_nobody_knows_is_refused_with_the_choices(tmp_path):
    with pytest.raises(UserError, match=r"NAME: 'horovd' .*did you mean 'horovod'"):
        set_up("horovd", tmp_path, print)
