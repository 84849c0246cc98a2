"""`zerobench doctor` as it is met: a table, an exit status, and Slurm, played by a script in place of its programs."""

from pathlib import Path

import pytest

from tests.app.terminal.conftest import Call
from zerobench.app.terminal.doctor import slurm_check
from zerobench.launch.setup.doctor import Finding, Standing

ANSWERS = 'case "$1" in ping) echo up;; --version) echo slurm 24.05;; esac'


def test_the_exit_status_is_1_where_nothing_can_run(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = [Finding("torch", Standing.MISSING, "not installed", "python -m pip install torch")]
    monkeypatch.setattr("zerobench.app.terminal.doctor.examine", lambda *_: nothing)
    code, out, _ = call("doctor")
    assert code == 1
    assert "python -m pip install torch" in " ".join(out.split())
    ended = out.rstrip().splitlines()[-3:]  # the answer comes last: it is on the screen when the command ends
    assert ended == ["no   emulated", "yes  formula", "no   submitted to Slurm"]


@pytest.mark.parametrize(
    ("programs", "script", "kind", "words"),
    [
        ((), "", Standing.MISSING, "its programs are not installed"),
        (("sbatch", "scontrol"), ANSWERS, Standing.MISSING, "squeue, srun not found"),
        (("sbatch", "squeue", "scontrol", "srun"), "exit 1", Standing.MISSING, "slurmctld does not answer"),
        (("sbatch", "squeue", "scontrol", "srun"), ANSWERS, Standing.GOOD, "slurm 24.05 answers"),
    ],
)
def test_slurm_is_there_where_its_controller_answers(
    programs: tuple[str, ...], script: str, kind: Standing, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in programs:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    [found] = slurm_check()
    assert (found.standing, found.finding) == (kind, words)
