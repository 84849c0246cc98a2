"""The batch scripts that ship, run by bash as they are, as a person does who submits them by hand."""

import os
import subprocess
from pathlib import Path

import pytest

from zerobench.common.resources import shipped

SLURM = shipped("slurm")
TEMPLATES = sorted(SLURM.glob("*.sbatch"))
# Stands where Python does, and prints what it was called with.
INTERPRETER = '#!/bin/bash\nprintf "%s\\n" "$@" --\n'


@pytest.fixture
def interpreter(tmp_path: Path) -> Path:
    program = tmp_path / "interpreter"
    program.write_text(INTERPRETER, encoding="utf-8")
    program.chmod(0o755)
    return program


def by_hand(template: str, interpreter: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"ZEROBENCH_CORE": str(interpreter)}
    command = ["bash", str(SLURM / template), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)


def test_the_templates_are_those_that_the_readme_lists() -> None:
    readme = (SLURM / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in TEMPLATES] == ["array.sbatch", "report.sbatch", "trial.sbatch"]
    assert all(f"`{path.name}`" in readme for path in TEMPLATES)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_every_line_that_slurm_reads_stands_before_the_first_command(template: Path) -> None:
    lines = template.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "#!/bin/bash"
    first_command = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    options = [number for number, line in enumerate(lines) if line.startswith(("#SBATCH", "##SBATCH"))]
    assert options
    assert max(options) < first_command


@pytest.mark.parametrize("template", ["array.sbatch", "trial.sbatch"])
def test_slurms_signals_and_requeues_reach_the_runner(template: str) -> None:
    text = (SLURM / template).read_text(encoding="utf-8")
    for line in (
        "#SBATCH --signal=B:USR1@60",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        "#SBATCH --exclusive",
    ):
        assert line in text
    assert '\nexec "$python" -m zerobench.launch.slurm.job "$run"' in text


def test_an_array_by_hand_hands_its_folder_and_tasks_over(interpreter: Path) -> None:
    done = by_hand("array.sbatch", interpreter, "/a run", "/a run/tasks")
    words = ["-m", "zerobench.launch.slurm.job", "/a run", "/a run/tasks", "--launcher", "srun", "--"]
    assert (done.stdout.splitlines(), done.stderr) == (words, "")


def test_a_trial_by_hand_is_one_trial(interpreter: Path) -> None:
    done = by_hand("trial.sbatch", interpreter, "/a run", "an-id")
    words = ["-m", "zerobench.launch.slurm.job", "/a run", "--trial", "an-id", "--launcher", "srun", "--"]
    assert (done.stdout.splitlines(), done.stderr) == (words, "")


def test_a_report_by_hand_closes_the_run_first(interpreter: Path) -> None:
    done = by_hand("report.sbatch", interpreter, "/a run")
    finish = ["-m", "zerobench.launch.slurm.job", "/a run", "--finish", "--"]
    report = ["-m", "zerobench", "report", "/a run", "--html", "--markdown", "--csv", "--"]
    assert (done.stdout.splitlines(), done.stderr) == ([*finish, *report], "")


@pytest.mark.parametrize(
    ("template", "arguments", "told"),
    [
        ("array.sbatch", [], "the run folder is missing"),
        ("array.sbatch", ["run"], "the tasks file is missing"),
        ("trial.sbatch", ["run"], "the id of the trial is missing"),
        ("report.sbatch", [], "the run folder is missing"),
    ],
)
def test_what_is_missing_is_said(interpreter: Path, template: str, arguments: list[str], told: str) -> None:
    done = by_hand(template, interpreter, *arguments)
    assert done.returncode != 0
    assert done.stdout == ""
    assert told in done.stderr
