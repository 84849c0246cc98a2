"""zerobench's core plays what lies in a training environment beside it, in which nothing is installed.

Both are real environments, made without a download: fresh venvs into which packages of this environment are linked. The
core has no torch; the training environment has torch, DeepSpeed and transformers, and neither zerobench nor what only
its core needs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import venv
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.test_login_install import asked_for, needed, top_entries
from tests.tools.at_least_one import at_least_one
from tests.tools.imports import ROOT
from zerobench.emulator.emulator import Emulator

SCRIPTS = ROOT / "tests" / "emulator" / "scripts"
Said = subprocess.CompletedProcess[str]
Core = Callable[..., Said]


def environment_of(home: Path, packages: Iterable[Requirement]) -> Path:
    """Make a venv in `home` with these packages of this environment, and what they need; its site-packages."""
    venv.create(home, symlinks=True)
    [site] = home.glob("lib/python*/site-packages")
    for path in {path for package in needed(packages).values() for path in top_entries(package)}:
        (site / path.name).symlink_to(path)
    return site


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Core:
    """Runs `zerobench` of an environment that has its core alone."""
    home = tmp_path_factory.mktemp("core")
    site = environment_of(home, asked_for())
    (site / "zerobench").symlink_to(ROOT / "zerobench")

    def run(*arguments: object, cwd: Path, **variables: str) -> Said:
        environment = {name: value for name, value in variables.items() if value}
        environment |= {"PATH": f"{home}/bin:/usr/bin:/bin", "COLUMNS": "200", "HOME": str(Path.home())}
        command = [str(home / "bin" / "python"), "-m", "zerobench", *map(str, arguments)]
        return subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False
        )

    return run


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a training environment, which its distribution asks not to install anything into."""
    home = tmp_path_factory.mktemp("training")
    site = environment_of(home, map(Requirement, ("torch", "deepspeed", "transformers", "accelerate")))
    assert not (site / "zerobench").exists()
    assert not (site / "pandas").exists()
    (site.parent / "EXTERNALLY-MANAGED").write_text("[externally-managed]\nError=Do not.\n")
    return home / "bin" / "python"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment without any package."""
    home = tmp_path_factory.mktemp("bare")
    environment_of(home, ())
    return home / "bin" / "python"


def files_of(python: Path) -> set[Path]:
    """All that lies in an environment, but for what Python itself caches."""
    return {path for path in python.parents[1].rglob("*") if "__pycache__" not in path.parts}


def one_line(said: Said) -> str:
    """What a refused command says: it exits with 2, and prints one line as an error."""
    assert said.returncode == 2, said.stderr
    [line] = said.stderr.splitlines()
    return line


@pytest.fixture(scope="module")
def emulated_run(
    core: Core, training: Path, emulator: Emulator, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Said, Path, set[Path]]:
    """A Trainer under `accelerate launch` on an emulated GPU, its run, and what it left in the environment."""
    assert emulator.torch
    before, folder = files_of(training), tmp_path_factory.mktemp("emulated")
    script = ["accelerate", "launch", SCRIPTS / "hf_trainer.py", "--output_dir", "out", "--max_steps", 2]
    script += ["--deepspeed", SCRIPTS / "ds_zero2.json", "--per_device_train_batch_size", 1, "--report_to", "none"]
    options = ["--gpus", 8, "--gpu", "h100", "--python", training, "--json"]
    said = core("emulate", *options, "--", *script, "--save_strategy", "no", cwd=folder)
    [run] = (folder / "reports").iterdir()
    return said, run, files_of(training) - before


def test_a_script_is_emulated_with_the_packages_of_the_environment_that_is_named(
    emulated_run: tuple[Said, Path, set[Path]], training: Path
) -> None:
    said, run, left = emulated_run
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["fits"] is True
    environment = json.loads((run / "environment.json").read_text())
    assert environment["python"] == str(training)
    [rank] = at_least_one(run.glob("trials/*/rank_0.json"))
    acted = json.loads(rank.read_text())["versions"]
    named = {name: environment["versions"][name] for name in ("deepspeed", "transformers", "accelerate")}
    assert {name: acted[name] for name in named} == named
    assert acted["torch"].partition("+")[0] == environment["versions"]["torch"].partition("+")[0]
    assert left == set()


TRACKED = """
import json, sys
import torch, zerobench
callback = zerobench.TrainerCallback()
names = sorted(path.name for path in __import__("pathlib").Path(zerobench.__path__[0]).parent.iterdir())
found = {"python": sys.executable, "torch": torch.__file__, "track": callable(zerobench.track), "beside": names}
print(json.dumps(found | {"pandas": __import__("importlib.util").util.find_spec("pandas") is not None}))
"""


@pytest.mark.parametrize("by_variable", [False, True], ids=["option", "variable"])
def test_a_watched_script_runs_in_that_environment_and_can_be_tracked_there(
    core: Core, training: Path, tmp_path: Path, *, by_variable: bool
) -> None:
    (tmp_path / "tracked.py").write_text(TRACKED)
    options = [] if by_variable else ["--python", training]
    variable = str(training) if by_variable else ""
    said = core("watch", *options, "--quiet", "--", "python", "tracked.py", cwd=tmp_path, ZEROBENCH_PYTHON=variable)
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout.splitlines()[-1])
    assert found["python"] == str(training)
    assert Path(found["torch"]).is_relative_to(training.parents[1])
    assert (found["track"], found["beside"], found["pandas"]) == (True, ["zerobench"], False)


def test_a_plan_is_simulated_with_the_packages_of_that_environment(core: Core, training: Path, tmp_path: Path) -> None:
    asked = ["--model", "gpt2-10m", "--gpus", 2, "--gpu", "h100", "--stage", 2, "--evidence", "simulated"]
    said = core("plan", *asked, "--python", training, "--json", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    plans = json.loads(said.stdout)
    assert plans["command"] == "plan"
    [environment] = tmp_path.glob("reports/*/environment.json")
    assert json.loads(environment.read_text())["python"] == str(training)
    ranks = at_least_one(tmp_path.glob("reports/*/trials/*/rank_0.json"))
    assert all(json.loads(rank.read_text())["status"] == "completed" for rank in ranks)


def test_ranks_are_measured_with_the_packages_of_that_environment(core: Core, training: Path, tmp_path: Path) -> None:
    ddp = ["--set", "strategy=ddp", "--only", "strategy=ddp", "--set", "world_size=2", "--set", "precision=fp32"]
    said = core("run", "quickstart", *ddp, "--python", training, cwd=tmp_path)
    assert said.returncode == 0, said.stdout + said.stderr
    [environment] = tmp_path.glob("reports/*/environment.json")
    assert json.loads(environment.read_text())["python"] == str(training)
    ranks = [json.loads(path.read_text()) for path in tmp_path.glob("reports/*/trials/*/rank_*.json")]
    assert [(rank["status"], rank["rank"]) for rank in sorted(ranks, key=lambda rank: rank["rank"])] == [
        ("completed", 0),
        ("completed", 1),
    ]
    command = [path.read_text() for path in tmp_path.glob("reports/*/trials/*/cmd.txt")]
    assert [str(training) in words.splitlines() for words in command] == [True]


EMULATE = ["emulate", "--gpus", "1", "--gpu", "h100"]
PLAN = ["plan", "--model", "gpt2-10m", "--gpus", "1", "--gpu", "h100", "--evidence", "simulated"]
RUN = ["run", "quickstart"]


@pytest.mark.parametrize("command", [EMULATE, PLAN, RUN, ["watch"]], ids=lambda command: command[0])
def test_an_interpreter_that_is_none_is_one_line_of_every_command(
    command: list[str], core: Core, tmp_path: Path
) -> None:
    behind = ["--", "python", "x.py"] if command[0] in {"emulate", "watch"} else []
    line = one_line(core(*command, "--python", "/bin/true", *behind, cwd=tmp_path))
    assert line == "zerobench: --python: /bin/true is not a Python interpreter"
    assert list(tmp_path.iterdir()) == []


def test_an_environment_without_torch_is_one_line(core: Core, bare: Path, tmp_path: Path) -> None:
    emulate = one_line(core(*EMULATE, "--python", bare, "--", "python", "x.py", cwd=tmp_path))
    assert emulate == f"zerobench: emulator: no torch is installed for {bare}"
    run = one_line(core(*RUN, "--python", bare, cwd=tmp_path))
    assert run.startswith(f"zerobench: torch, deepspeed and transformers are not installed for {bare}, and measured")
    assert f"{bare} -m pip install" in run
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [EMULATE, PLAN], ids=lambda command: command[0])
def test_packages_that_zerobench_needs_there_and_are_missing_or_too_old_are_one_line(
    command: list[str], core: Core, training: Path, emulator: Emulator, tmp_path: Path
) -> None:
    assert emulator.torch
    home = tmp_path / "old"
    shutil.copytree(training.parents[1], home, symlinks=True)
    [site] = home.glob("lib/python*/site-packages")
    for path in (*site.glob("pydantic-*"), *site.glob("psutil-*")):
        path.unlink()
    about = site / "pydantic-2.7.4.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: pydantic\nVersion: 2.7.4\n")
    python = home / "bin" / "python"
    behind = ["--", "python", "x.py"] if command[0] == "emulate" else []
    line = one_line(core(*command, "--python", python, *behind, cwd=home))
    assert line.startswith(f"zerobench: {python} has pydantic 2.7.4, psutil (not installed); zerobench needs")
    assert line.endswith(f"{python} -m pip install 'pydantic>=2.8' 'psutil>=5.0'")


@pytest.mark.parametrize(
    ("version", "cuda", "message"),
    [
        ("2.8.0+cpu", None, r"not set up for torch 2.8.0+cpu; supported: 2.11.0, 2.12.0, 2.12.1, 2.13.0"),
        (
            "2.8.0+cu128",
            "12.8",
            "torch 2.8.0+cu128 is a build for CUDA 12.8; supported: 2.11.0, 2.12.0, 2.12.1, 2.13.0",
        ),
    ],
)
@pytest.mark.parametrize("command", ["emulate", "setup"])
def test_a_torch_that_has_no_emulated_gpu_is_one_line_that_says_which_have(
    version: str, cuda: str | None, message: str, command: str, core: Core, tmp_path: Path
) -> None:
    home = tmp_path / "other"
    site = environment_of(home, ())
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").touch()
    (site / "torch" / "version.py").write_text(f"__version__ = {version!r}\ncuda: Optional[str] = {cuda!r}\n")
    python, folder = home / "bin" / "python", tmp_path / "environments"
    if command == "emulate":
        line = one_line(
            core(*EMULATE, "--python", python, "--", "python", "x.py", cwd=home, ZEROBENCH_ENVIRONMENTS=str(folder))
        )
        assert line.startswith(f"zerobench: emulator: {message}")
        return
    said = core("setup", "emulator", "--python", python, "--folder", folder, cwd=home)
    assert said.returncode == 2
    [line] = said.stderr.splitlines()
    assert "torch 2.13.0" in line or "2.13.0, built for CUDA 13" in line


def test_an_emulator_that_is_not_set_up_says_how_to_for_that_interpreter(
    core: Core, training: Path, tmp_path: Path
) -> None:
    said = core(
        *EMULATE,
        "--python",
        training,
        "--",
        "python",
        "x.py",
        cwd=tmp_path,
        ZEROBENCH_ENVIRONMENTS=str(tmp_path / "no"),
    )
    assert one_line(said).endswith(f"; run: zerobench setup emulator --python {training}")
