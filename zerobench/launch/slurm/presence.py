"""Check of `zerobench doctor` for Slurm."""

import shutil
from collections.abc import Iterator

from zerobench.launch.setup.doctor import Finding, Standing
from zerobench.launch.slurm.client import run_client

_PROGRAMS = ("sbatch", "squeue", "scontrol", "srun")
_PATIENCE_S = 5.0


def slurm_check() -> Iterator[Finding]:
    """Check that Slurm's programs are installed and its controller answers."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if len(missing) == len(_PROGRAMS):
        yield Finding("Slurm", Standing.MISSING, "its programs are not installed", "needed for zerobench submit only")
    elif missing:
        yield Finding("Slurm", Standing.MISSING, f"{', '.join(missing)} not found", "load Slurm's module")
    elif run_client(["scontrol", "ping"], _PATIENCE_S) is None:
        yield Finding("Slurm", Standing.MISSING, "slurmctld does not answer", "scontrol ping")
    else:
        version = (run_client(["scontrol", "--version"], _PATIENCE_S) or "").strip()
        yield Finding("Slurm", Standing.GOOD, f"{version} answers".strip())
