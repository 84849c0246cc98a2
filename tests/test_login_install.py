"""The core, as on a cluster's login node or beside a training environment: no torch, no DeepSpeed, no transformers.

The environment is a real one, made without a download: a fresh venv into which the packages of this environment are
linked, those that the core and its pages ask for and what they need, and the project itself.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shlex
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.main import get_command

from tests.report.sample_run import sample_trials, write_run
from tests.tools.imports import ROOT
from zerobench.app.terminal.app import app
from zerobench.common.distribution import DISTRIBUTION
from zerobench.common.vocabulary import Status

PAGE = ROOT / "slurm" / "CLUSTER.md"
FRAMEWORKS = {"torch", "deepspeed", "transformers"}
"""What ranks need, and nothing else does."""

Said = subprocess.CompletedProcess[str]
Login = Callable[..., Said]


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def asked_for(*extras: str) -> list[Requirement]:
    optional = project()["optional-dependencies"]
    return [
        Requirement(line) for line in (*project()["dependencies"], *(one for name in extras for one in optional[name]))
    ]


def needed(requirements: Iterable[Requirement]) -> dict[str, importlib.metadata.Distribution]:
    """The installed packages that `requirements` come to, with all that they need in turn, by name."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = list(requirements)
    while waiting:
        name = canonicalize_name(waiting.pop().name)
        if name in found:
            continue
        found[name] = importlib.metadata.distribution(name)
        inner = map(Requirement, found[name].requires or [])
        waiting += [one for one in inner if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def top_entries(package: importlib.metadata.Distribution) -> Iterator[Path]:
    """The files and folders of a package that lie in site-packages itself."""
    names = {Path(str(path)).parts[0] for path in package.files or []} - {"..", "__pycache__"}
    yield from (Path(str(package.locate_file(name))) for name in sorted(names))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the core, what draws its pages, and zerobench."""
    home = tmp_path_factory.mktemp("login")
    venv.create(home, symlinks=True)
    site = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    packages = [*needed(asked_for("report")).values(), importlib.metadata.distribution(DISTRIBUTION)]
    for path in {path for package in packages for path in top_entries(package)}:
        (site / path.name).symlink_to(path)
    return home / "bin" / "python"


@pytest.fixture
def login(python: Path, tmp_path: Path) -> Login:
    """Runs `zerobench` in that environment, in an empty folder."""

    def run(*arguments: str) -> Said:
        command = [str(python), "-m", "zerobench", *arguments]
        environment = {"PATH": f"{python.parent}:/usr/bin:/bin", "COLUMNS": "200", "HOME": str(tmp_path)}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    return run


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with measured trials, as the nodes would leave it."""
    by_strategy = {one.spec.strategy: one for one in sample_trials() if one.record.status is Status.COMPLETED}
    trials = [by_strategy[name] for name in ("zero1", "zero2", "zero3")]
    return write_run(tmp_path_factory.mktemp("reports") / "sample_20260102-030405", trials).path


def test_the_core_asks_for_no_framework_and_the_extra_run_for_all_of_them_without_upper_limits() -> None:
    core = needed(asked_for())
    assert core.keys().isdisjoint(FRAMEWORKS | {"numba", "triton", "huggingface-hub", "tokenizers", "accelerate"})
    assert {"rich", "pandas", "nvidia-ml-py"} <= core.keys()
    run = asked_for("run")[len(asked_for()) :]
    assert {one.name for one in run} == FRAMEWORKS
    assert {bound.operator for one in run for bound in one.specifier} == {">="}
    assert project()["name"] == DISTRIBUTION
    assert project()["optional-dependencies"]["all"] == [f"{DISTRIBUTION}[run,report,trainer,export]"]


def commands_of_the_page() -> list[list[str]]:
    """The words of each `zerobench` command on the page, without comments."""
    text = re.sub(r"\\\n\s+", "", PAGE.read_text(encoding="utf-8"))
    lines = re.findall(r"^    (?:\$ .*; |\$ )?zerobench (.*)$", text, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def test_every_command_on_the_page_exists_with_its_options() -> None:
    """Whoever renames an option renames it there too."""
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined] # a group's
    known = {name: {option for one in command.params for option in one.opts} for name, command in commands.items()}
    used = commands_of_the_page()
    assert {words[0] for words in used} >= {"plan", "submit", "status", "report", "run"}
    assert [
        f"{words[0]} {word}"
        for words in used
        for word in words[1:]
        if word.startswith("--") and word not in known.get(words[0], set())
    ] == []


def test_make_login_installs_the_core_and_its_pages(tmp_path: Path) -> None:
    command = ["make", "--dry-run", "login", f"LOGIN={tmp_path}/made", "PYTHON=python3"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    installs = [line.partition(" -m pip ")[2] for line in said.splitlines() if " -m pip " in line]
    assert installs == ["install --constraint constraints.txt --editable '.[report]'"]


def test_no_framework_is_there(python: Path) -> None:
    names = ["torch", "deepspeed", "transformers", "triton", "huggingface_hub"]
    code = f"import importlib.util as u, json; print(json.dumps([n for n in {names} if u.find_spec(n)]))"
    said = subprocess.run([str(python), "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(said.stdout) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], "Begin with: zerobench run quickstart"),
        (["run", "offload", "--dry-run"], "run       llama-20m-zero2-cpu-none-"),
        (["submit", "zero-stages", "--gpus-per-node", "8", "--nodes", "2", "--dry-run"], "2-nodes  2 nodes, 1 task of"),
    ],
)
def test_what_needs_no_rank_works(login: Login, arguments: list[str], words: str) -> None:
    said = login(*arguments)
    assert said.returncode == 0, said.stderr
    assert words in said.stdout


@pytest.mark.parametrize(("model", "plays_allocator"), [("llama-7b", True), ("qwen3-8b", False)])
def test_a_plan_by_formula_ends_in_a_recommendation_that_knows_the_step(
    login: Login, model: str, plays_allocator: bool
) -> None:
    said = login(
        "plan", "--model", model, "--gpus", "8", "--gpu", "h200", "--host-memory", "1TB", "--formula", "--details"
    )
    assert said.returncode == 0, said.stderr
    assert "Predicted (formula): " in said.stdout
    assert re.search(rf"{model} on 8 x H200 SXM: choose zero\d", said.stdout)
    assert re.search(r"tokens/s expected \(.*\), [\d.]+ ms per step, \d+% MFU\.", " ".join(said.stdout.split()))
    assert ("formula: allocator rounding and fragmentation" in said.stdout) is not plays_allocator


@pytest.mark.parametrize(
    "arguments", [["run", "quickstart"], ["plan", "--model", "llama-7b", "--gpus", "8", "--gpu", "h200"]]
)
def test_what_needs_ranks_says_so_in_one_line_and_leaves_nothing(
    login: Login, tmp_path: Path, arguments: list[str]
) -> None:
    said = login(*arguments)
    assert said.returncode == 2
    assert re.fullmatch(
        r"zerobench: torch, deepspeed and transformers are not installed here, and .*trials need them: "
        r"python -m pip install 'torch[^']*2\.11[^']*' 'deepspeed[^']*' 'transformers[^']*'; or give the interpreter .*"
        r"\(--python PATH\); on a login node, .*\n",
        said.stderr,
    )
    assert not list(tmp_path.rglob("plan.json"))


@pytest.mark.parametrize(
    ("arguments", "words"), [(["explain", "RUN", "zero1", "zero2"], "Answer"), (["compare", "RUN", "RUN"], "zero2")]
)
def test_a_run_of_the_nodes_is_read(login: Login, measured: Path, arguments: list[str], words: str) -> None:
    said = login(*[str(measured) if one == "RUN" else one for one in arguments])
    assert said.returncode == 0, said.stderr
    assert words in said.stdout


def test_a_sweep_by_formula_is_submitted_run_by_the_batch_scripts_and_reported(login: Login, tmp_path: Path) -> None:
    """The scripts run under the login node's interpreter, on the nodes too: the job runner and the report."""
    sweep = ["predicted-7b", "--set", "evidence=formula", "--only", "strategy=zero3"]
    said = login("submit", *sweep, "--gpus-per-node", "8", "--local")
    assert said.returncode == 0, said.stdout + said.stderr
    assert re.search(r"^predictions: done\nreport: done\n", said.stdout)
    [run] = tmp_path.glob("reports/predicted-7b_*/")
    assert "<svg" in (run / "report.html").read_text(encoding="utf-8")
    status = login("status")
    assert (status.returncode, status.stderr) == (0, "")
    assert f"{run.name}: 1 trial, 1 completed" in status.stdout


def test_measured_trials_are_submitted_only_with_the_interpreter_of_their_ranks(login: Login, tmp_path: Path) -> None:
    said = login("submit", "quickstart", "--gpus-per-node", "8")
    assert said.returncode == 2
    assert said.stderr.endswith("give the ranks' interpreter (--python PATH) or container (--container IMAGE)\n")
    assert not list(tmp_path.iterdir())


def test_a_model_of_the_hub_says_what_reading_it_takes(login: Login) -> None:
    said = login("plan", "--model", "organisation/name", "--gpus", "8", "--gpu", "h200", "--formula")
    assert said.returncode == 2
    assert "huggingface_hub is not installed; give a config.json, or: python -m pip install" in said.stderr
