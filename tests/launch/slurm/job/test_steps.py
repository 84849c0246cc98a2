"""The srun commands that start ranks: against golden files, and what their shell parts do when they are run."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch.slurm.on_cluster import standin_trial
from tests.tools.golden import as_looked_at
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.launch.slurm.job.steps import (
    Interpreter,
    deepspeed_argv,
    hostfile_text,
    overlapping_step,
    rank_script_text,
    srun_argv,
)
from zerobench.launch.slurm.options import ContainerRuntime
from zerobench.records.folder import TrialFolder

GOLDEN = Path(__file__).parent / "golden"
FOLDER = TrialFolder(Path("/runs/stages_20250101-120000/trials/standin-zero1-n16"))
ODD = TrialFolder(Path("/home/a b/100%/runs/stages/trials/standin-zero1-n16"))
PLAIN = Interpreter("/shared/env/bin/python")
PYXIS = Interpreter("python3", "nvcr.io#nvidia/pytorch:26.09-py3")
APPTAINER = Interpreter("python3", "/shared/torch.sif", ContainerRuntime.APPTAINER)
TRIAL = standin_trial("standin", num_nodes=2, gpus_per_node=8)
SOLO = standin_trial("standin", num_nodes=2, gpus_per_node=8, evidence=Evidence.SOLO)


def by_srun(trial: TrialSpec, folder: TrialFolder, interpreter: Interpreter) -> list[str]:
    return srun_argv(trial, folder, interpreter, ["n1", "n2"] if trial is TRIAL else ["n1"], 64)


def by_deepspeed(trial: TrialSpec, folder: TrialFolder, interpreter: Interpreter) -> list[str]:
    hostfile = folder.path / "hostfile"
    return deepspeed_argv(trial, folder, interpreter, ["n1", "n2"], 64, ("n1.cluster", 29500), hostfile)


@pytest.mark.parametrize(
    ("golden", "argv", "trial", "folder", "interpreter"),
    [
        ("srun.txt", by_srun, TRIAL, FOLDER, PLAIN),
        ("srun_solo.txt", by_srun, SOLO, FOLDER, PLAIN),
        ("srun_odd_folder.txt", by_srun, TRIAL, ODD, PLAIN),
        ("srun_pyxis.txt", by_srun, TRIAL, FOLDER, PYXIS),
        ("srun_apptainer.txt", by_srun, TRIAL, FOLDER, APPTAINER),
        ("deepspeed.txt", by_deepspeed, TRIAL, FOLDER, PLAIN),
        ("deepspeed_pyxis.txt", by_deepspeed, TRIAL, FOLDER, PYXIS),
        ("deepspeed_apptainer.txt", by_deepspeed, TRIAL, FOLDER, APPTAINER),
    ],
)
def test_the_command_of_a_trials_ranks_is_the_golden_one(
    golden: str,
    argv: Callable[[TrialSpec, TrialFolder, Interpreter], list[str]],
    trial: TrialSpec,
    folder: TrialFolder,
    interpreter: Interpreter,
) -> None:
    text = "".join(f"{word}\n" for word in argv(trial, folder, interpreter))
    as_looked_at(text, GOLDEN / golden)


def test_no_word_of_a_command_has_two_lines_so_that_cmd_txt_runs_it_again() -> None:
    words = [*by_srun(TRIAL, FOLDER, PLAIN), *by_deepspeed(TRIAL, FOLDER, PLAIN)]
    assert [word for word in words if "\n" in word] == []


def test_a_step_beside_the_ranks_runs_once_on_each_node_and_takes_nothing_from_them() -> None:
    argv = overlapping_step(["n1", "n4"], ["true"])
    assert argv[-2:] == ["--overlap", "true"]
    assert {"--nodes=2", "--ntasks=2", "--nodelist=n1,n4", "--mem=0"} < set(argv)


def test_the_hostfile_names_each_node_with_its_ranks() -> None:
    assert hostfile_text(["n1", "n2"], 8) == "n1 slots=8\nn2 slots=8\n"


def test_each_node_gives_deepspeeds_launcher_its_own_number(tmp_path: Path) -> None:
    python = tmp_path / "a python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    argv = by_deepspeed(TRIAL, FOLDER, Interpreter(str(python)))
    said = subprocess.run(
        argv[argv.index("bash") :], env={**os.environ, "SLURM_NODEID": "1"}, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert said[:5] == ["-m", "deepspeed.launcher.runner", "--no_ssh", "--node_rank", "1"]
    assert said[5:] == argv[argv.index("--hostfile") :]


@pytest.mark.parametrize(("body", "status"), [("sys.exit(0)", 0), ("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137)])
def test_a_task_becomes_a_rank_and_leaves_its_exit_status_behind(tmp_path: Path, body: str, status: int) -> None:
    script, seen = tmp_path / "rank.sh", tmp_path / "seen"
    script.write_text(rank_script_text())
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    program = f"import os, sys; open({str(seen)!r}, 'w').write(' '.join(os.environ[n] for n in {names})); {body}"
    slurm = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "64", "SLURM_STEP_NUM_TASKS": "8"}
    done = subprocess.run(
        ["bash", str(script), str(tmp_path), sys.executable, "-c", program], env={**os.environ, **slurm}, check=False
    )
    assert done.returncode == status
    assert seen.read_text() == "5 1 8"
    assert (tmp_path / "exit_5.txt").read_text() == f"{status}\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exit_5.txt", "rank.sh", "seen"]
