"""The batch scripts that ship, run by bash with a stand-in `srun` that starts every task as Slurm would."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from zerobench.resources import shipped
from zerobench.run.launcher import MARK, PINNED_MALLOC
from zerobench.spec.trial import TrialSpec

SLURM = shipped("slurm")
TEMPLATES = sorted(SLURM.glob("*.sbatch"))

# Two nodes with two tasks each. Options end where the command begins, at `bash`.
SRUN = """#!/bin/bash
printf '%s\\n' "$@" > "$SEEN/srun"
while [ "$1" != bash ]; do shift; done
for task in 0 1 2 3; do
  SLURM_PROCID=$task SLURM_NTASKS=4 SLURM_LOCALID=$((task % 2)) "$@"
done
"""
# Stands where Python does, and writes down what it was called with.
INTERPRETER = """#!/bin/bash
{ printf '%s\\n' "$@"; } > "$SEEN/arguments_${RANK:-none}"
env -0 > "$SEEN/environment_${RANK:-none}"
"""


@pytest.fixture
def seen(tmp_path: Path) -> Path:
    """Where the stand-ins write."""
    for name, text in (("srun", SRUN), ("interpreter", INTERPRETER)):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(text, encoding="utf-8")
        program.chmod(0o755)
    (tmp_path / "seen").mkdir()
    return tmp_path / "seen"


def submit(template: str, seen: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    programs = seen.parent / "bin"
    job = {"SLURM_JOB_ID": "20017", "SLURM_CPUS_PER_TASK": "3", "SEEN": str(seen)}
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "ZEROBENCH_PYTHON": str(programs / "interpreter")}
    command = ["bash", str(SLURM / template), *arguments]
    return subprocess.run(command, env=job | environment, capture_output=True, text=True, timeout=30, check=False)


def environment_of(seen: Path, rank: int | str) -> dict[str, str]:
    pairs = (seen / f"environment_{rank}").read_text(encoding="utf-8").split("\0")[:-1]
    return dict(pair.split("=", 1) for pair in pairs)


def trial_folder(path: Path) -> Path:
    path.mkdir()
    (path / "trial.json").write_text("{}", encoding="utf-8")
    return path


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_every_line_that_slurm_reads_stands_before_the_first_command(template: Path) -> None:
    lines = template.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "#!/bin/bash"
    first_command = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    options = [number for number, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert options
    assert max(options) < first_command


def test_each_task_becomes_the_rank_that_torch_expects(seen: Path, tmp_path: Path) -> None:
    folder = trial_folder(tmp_path / "a trial")
    done = submit("trial.sbatch", seen, str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    told = [environment_of(seen, rank) for rank in range(4)]
    assert [(one["RANK"], one["LOCAL_RANK"], one["WORLD_SIZE"]) for one in told] == [
        ("0", "0", "4"),
        ("1", "1", "4"),
        ("2", "0", "4"),
        ("3", "1", "4"),
    ]
    assert {(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in told} == {(os.uname().nodename, "20017")}
    expected = ["-m", "zerobench.worker", "--trial-folder", str(folder)]
    assert (seen / "arguments_3").read_text(encoding="utf-8").splitlines() == expected


def test_ranks_under_slurm_have_the_malloc_and_the_mark_of_a_launched_trial(seen: Path, tmp_path: Path) -> None:
    folder = trial_folder(tmp_path / "trial")
    submit("trial.sbatch", seen, str(folder))
    told = environment_of(seen, 0)
    assert {name: told[name] for name in PINNED_MALLOC} == PINNED_MALLOC
    assert told[MARK] == str(folder)
    assert told["OMP_NUM_THREADS"] == "3"


def test_a_failed_rank_ends_the_others(seen: Path, tmp_path: Path) -> None:
    submit("trial.sbatch", seen, str(trial_folder(tmp_path / "trial")))
    assert "--kill-on-bad-exit=1" in (seen / "srun").read_text(encoding="utf-8").splitlines()


def test_a_folder_without_a_trial_is_refused_before_any_rank_starts(seen: Path, tmp_path: Path) -> None:
    done = submit("trial.sbatch", seen, str(tmp_path))
    assert (done.returncode, done.stderr) == (2, f"{tmp_path} holds no trial.json\n")
    assert list(seen.iterdir()) == []


def test_a_sweep_under_slurm_gets_the_words_of_the_command_line(seen: Path) -> None:
    assert submit("sweep.sbatch", seen, "zero-stages", "--set", "model=llama-7b").returncode == 0
    words = (seen / "arguments_none").read_text(encoding="utf-8").splitlines()
    assert words == ["-m", "zerobench", "run", "zero-stages", "--set", "model=llama-7b"]


def test_the_readme_lays_out_trials_for_a_cluster_that_is_not_at_hand(tmp_path: Path) -> None:
    snippets = re.findall(r"```python\n(.*?)```", (SLURM / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    for snippet in snippets:
        subprocess.run([sys.executable, "-c", snippet], cwd=tmp_path, env=environment, check=True, timeout=60)
    folders = sorted((tmp_path / "trials").iterdir())
    trials = [TrialSpec.model_validate_json((folder / "trial.json").read_bytes()) for folder in folders]
    assert {trial.world_size for trial in trials} == {1, 16}
    for folder, trial in zip(folders, trials, strict=True):
        if trial.zero_stage is not None:
            config = json.loads((folder / "ds_config.json").read_bytes())
            assert config["zero_optimization"]["stage"] == trial.zero_stage
