"""A training environment's interpreter is read from outside; one that cannot be used is refused in one line."""

from __future__ import annotations

import json
import platform
import shutil
import struct
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from zerobench.common.environments import version_of
from zerobench.common.errors import UserError
from zerobench.common.training_python import VARIABLE, choose_python, own_python, training_python
from zerobench.common.training_variables import training_variables
from zerobench.config.deepspeed.kernels import compiled
from zerobench.config.hardware.toolchain import package_folder, torch_cuda_version
from zerobench.emulator.places import Torch, kind_of

Make = Callable[[Path], Path]


@pytest.fixture(autouse=True)
def chosen_by_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setenv("ZEROBENCH_ENVIRONMENTS", str(tmp_path / "environments"))


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """The interpreter of an environment with a torch for CUDA 12.8 of a release of its own, and nothing else."""
    home = tmp_path / "training"
    venv.create(home, symlinks=True)
    site = next((home / "lib").glob("python*/site-packages"))
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").touch()
    (site / "torch" / "version.py").write_text("__version__ = '2.8.0+cu128'\ncuda: Optional[str] = '12.8'\n")
    about = site / "torch-2.8.0+cu128.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.8.0+cu128\n")
    return home / "bin" / "python"


def script(text: str) -> Make:
    def make(folder: Path) -> Path:
        path = folder / "python"
        path.write_text(text)
        path.chmod(0o755)
        return path

    return make


def saying(**facts: object) -> Make:
    """A program that answers as an interpreter would of which these `facts` are true."""
    usual = {"executable": "/x/bin/python", "path": [], "prefix": "/x", "is_virtual": False, "abi": "", "folders": {}}
    usual |= {"version": "3.12.4", "numbers": [3, 12], "machine": platform.machine()}
    return script(f"#!/bin/sh\necho a site may print\necho '{json.dumps(usual | facts)}'\n")


def for_another_machine(folder: Path) -> Path:
    """An interpreter whose header says that it is built for 64-bit Arm, or on Arm for x86-64."""
    path = folder / "python"
    shutil.copy(Path(sys.executable).resolve(), path)
    with path.open("r+b") as file:
        file.seek(18)
        file.write(struct.pack("<H", 62 if platform.machine() == "aarch64" else 183))
    return path


def not_executable(folder: Path) -> Path:
    (folder / "python").touch(mode=0o644)
    return folder / "python"


REFUSED: dict[str, tuple[Make, str]] = {
    "nothing": (lambda folder: folder / "python", r"no such file; give an interpreter, such as ~/venvs"),
    "a folder": (lambda folder: folder, r"is a folder; give its interpreter, such as .*/bin/python$"),
    "a file that cannot be executed": (not_executable, r"is not executable; give an interpreter"),
    "another program": (script("#!/bin/sh\necho 'unknown option -c' >&2\n"), r"is not a Python interpreter: unknown"),
    "a text": (script("import sys\n"), r"cannot be run: Exec format error$"),
    "another architecture": (for_another_machine, r"is built for (aarch64|x86_64); this machine is"),
    "an emulated architecture": (saying(machine="s390x"), r"runs as s390x; this machine is"),
    "an old Python": (
        saying(version="3.10.13", numbers=[3, 10]),
        r"is Python 3\.10\.13; zerobench needs 3\.11 or newer",
    ),
    "an old Python 2": (saying(version="2.7.18", numbers=[2, 7]), r"is Python 2\.7\.18; zerobench needs"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_usable_interpreter_is_one_line(
    make: Make, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path)
    with pytest.raises(UserError, match=rf"^--python: {path}.*{message}") as by_option:
        choose_python(str(path))
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.raises(UserError, match=rf"^ZEROBENCH_PYTHON: {path}.*{message}"):
        training_python()
    assert len(str(by_option.value).splitlines()) == 1


def test_without_a_choice_ranks_run_under_this_interpreter_and_its_environment_is_as_it_is() -> None:
    assert training_python() == own_python()
    assert training_variables({"PATH": "/usr/bin"}) == {}


def test_the_interpreter_of_this_environment_by_its_path_is_this_one() -> None:
    chosen = choose_python(sys.executable)
    assert chosen.is_own
    assert training_variables({VARIABLE: sys.executable}) == {VARIABLE: ""}


def test_versions_sources_and_builds_are_those_of_the_training_environment(beside: Path) -> None:
    chosen = choose_python(str(beside))
    site = next(beside.parents[1].glob("lib/python*/site-packages"))
    assert (chosen.is_own, chosen.virtual_env) == (False, beside.parents[1])
    assert package_folder("torch") == site / "torch"
    assert (version_of("torch"), torch_cuda_version()) == ("2.8.0+cu128", "12.8")
    assert (version_of("pydantic"), package_folder("pydantic")) == (None, None)  # which this environment has


def test_its_processes_find_zerobench_and_no_other_package_of_ours_and_its_programs_first(beside: Path) -> None:
    choose_python(str(beside))
    added = training_variables({"PATH": "/usr/bin", "PYTHONPATH": "/mine", VARIABLE: str(beside)})
    code, mine = added["PYTHONPATH"].split(":")
    assert [path.name for path in Path(code).iterdir()] == ["zerobench"]
    assert (mine, added["PATH"], added[VARIABLE]) == ("/mine", f"{beside.parent}:/usr/bin", "")
    assert added["VIRTUAL_ENV"] == str(beside.parents[1])


def test_what_is_built_for_one_python_is_named_by_the_training_environments(tmp_path: Path) -> None:
    choose_python(str(saying(version="3.13.2", numbers=[3, 13], abi="t")(tmp_path)))
    torch = Torch(tmp_path, "2.13.0", "2.13.0+cpu", cuda=None, hip=None)
    assert kind_of(torch) == "torch-2.13.0-py313-overlay"
    kernel = tmp_path / "torch_extensions" / "py313t_cpu" / "cpu_adam"
    kernel.mkdir(parents=True)
    assert compiled("cpu_adam", {"XDG_CACHE_HOME": str(tmp_path)}) == [kernel / "cpu_adam.so"]


def test_a_folder_that_cannot_be_written_is_one_line(
    beside: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ZEROBENCH_ENVIRONMENTS", str(tmp_path / "file"))
    choose_python(str(beside))
    with pytest.raises(UserError, match=r"\.code: Not a directory; set ZEROBENCH_ENVIRONMENTS to a folder"):
        training_variables({})


def test_a_name_without_a_folder_is_looked_up_on_path(beside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(beside.parent))
    assert choose_python("python").python == beside
