"""The package as a user installs it: built as a wheel, installed beside no checkout, used from an empty folder."""

import json
import os
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from zerobench import __version__

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"torch", "deepspeed", "transformers", "pandas"}

NOTHING_HEAVY_PROBE = """
import json, sys
from zerobench.app.terminal.app import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    code = end.code
print(json.dumps({"code": code, "modules": sorted({name.partition(".")[0] for name in sys.modules})}))
"""
SHIPPED_PROBE = """
import json, sys
from zerobench.common.resources import shipped
folder = shipped(sys.argv[1])
files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
print(json.dumps({"folder": str(folder), "files": files}))
"""


@dataclass(frozen=True)
class Installed:
    """An environment that has the wheel, and an empty folder to work in."""

    environment: Path
    folder: Path

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in the empty folder, with nothing that leads to the checkout."""
        hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
        return subprocess.run(
            [str(self.environment / "bin" / program), *arguments],
            cwd=self.folder,
            env={name: value for name, value in os.environ.items() if name not in hidden},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def ask(self, script: str, *arguments: str) -> Any:
        """What a script prints as its last line, as JSON."""
        done = self.run("python", "-c", script, *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in an environment of its own, which borrows the dependencies from the one that runs the tests.

    Plain lines of a .pth file are added behind the environment's own folder, and .pth files in the borrowed folders,
    which make an editable install of the checkout, are not read.
    """
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, with_pip=False)
    (packages,) = environment.glob("lib/python*/site-packages")
    borrowed = [path for path in sys.path if Path(path).is_dir() and Path(path).resolve() != ROOT]
    (packages / "borrowed.pth").write_text("".join(f"{path}\n" for path in borrowed), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install"]
    subprocess.run([*pip, "--quiet", "--no-index", "--no-deps", str(wheel)], check=True)
    return Installed(environment, tmp_path_factory.mktemp("empty"))


def test_what_runs_is_the_installed_package_and_not_the_checkout(installed: Installed) -> None:
    where = installed.ask("import json, zerobench; print(json.dumps(zerobench.__file__))")
    assert Path(where).is_relative_to(installed.environment)


def test_the_console_script_and_the_module_are_the_same(installed: Installed) -> None:
    script = installed.run("zerobench", "--version")
    module = installed.run("python", "-m", "zerobench", "--version")
    assert script.stdout == module.stdout == f"zerobench {__version__}\n"


@pytest.mark.parametrize(
    ("name", "in_checkout"), [("sweeps", "zerobench/sweeps"), ("ds_configs", "ds_configs"), ("slurm", "slurm")]
)
def test_every_shipped_file_reaches_an_installed_user(installed: Installed, name: str, in_checkout: str) -> None:
    source = ROOT / in_checkout
    expected = sorted(str(path.relative_to(source)) for path in source.rglob("*") if path.is_file())
    found = installed.ask(SHIPPED_PROBE, name)
    assert Path(found["folder"]).is_relative_to(installed.environment)
    assert found["files"] == expected
    assert expected


def test_the_shipped_sweeps_are_listed(installed: Installed) -> None:
    listed = installed.run("zerobench", "sweeps")
    assert (listed.returncode, listed.stderr) == (0, "")
    for path in (ROOT / "zerobench" / "sweeps").glob("*.yaml"):
        assert f"{path.stem} " in listed.stdout


def test_a_dry_run_of_the_quickstart_lists_its_trials_and_writes_nothing(installed: Installed) -> None:
    planned = installed.run("zerobench", "run", "quickstart", "--dry-run")
    assert (planned.returncode, planned.stderr) == (0, "")
    for strategy in ("single", "zero0", "zero1", "zero2", "zero3"):
        assert f"-{strategy}-" in planned.stdout
    assert list(installed.folder.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--help"], ["sweeps"], ["run", "quickstart", "--dry-run"]], ids=" ".join)
def test_help_and_plans_import_neither_a_training_framework_nor_pandas(
    installed: Installed, arguments: list[str]
) -> None:
    told = installed.ask(NOTHING_HEAVY_PROBE, *arguments)
    assert told["code"] == 0
    assert HEAVY & set(told["modules"]) == set()


def test_the_worker_starts_from_the_installed_package(installed: Installed) -> None:
    said = installed.run("python", "-m", "zerobench.rank.loop", "--help")
    assert said.returncode == 0, said.stderr
    assert "--trial-folder" in said.stdout


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert [
        name for name in names if not name.startswith(("zerobench/", f"deepspeed_zerobench-{__version__}.dist-info/"))
    ] == []
    assert [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".tmp"))] == []
