"""What `zerobench doctor` says of Slurm, played by a script in the place of its programs."""

from pathlib import Path

import pytest

from zerobench.launch.setup.doctor import Standing
from zerobench.launch.slurm.presence import slurm_check

ANSWERS = 'case "$1" in ping) echo up;; --version) echo slurm 24.05;; esac'


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
