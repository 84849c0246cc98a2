"""Calls sbatch: the one program of Slurm's whose answer must not be lost, since it has then taken a job."""

import os
import re
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path

from zerobench.common.errors import UserError

TIMEOUT_S = 120.0

_CONTROLLER_VARIABLES = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT"}
"""Variables that tell Slurm's programs which controller to ask."""
_VARIABLES = {
    "array": "SBATCH_ARRAY_INX",
    "time": "SBATCH_TIMELIMIT",
    "requeue": "SBATCH_NO_REQUEUE",
    "mem": "SBATCH_MEM_PER_NODE",
}
"""sbatch's variables (sbatch(1), INPUT ENVIRONMENT VARIABLES) whose names are not SBATCH_ and the option's."""
_OPTION = re.compile(r"^#SBATCH \"?--([a-z-]+)", re.MULTILINE)


def sbatch(script: Path) -> int:
    """Slurm's id of the job of `script`, submitted.

    Raises UserError: Slurm refuses it, does not answer, or is not there.
    """
    environment = sbatch_environment(os.environ, _OPTION.findall(script.read_text(encoding="utf-8")))
    try:
        answer = subprocess.run(
            ["sbatch", "--parsable", str(script)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            timeout=TIMEOUT_S,
            start_new_session=True,  # Ctrl-C is for us, who must hear the answer
            check=False,
        )
    except OSError as error:
        raise UserError(f"sbatch: {error.strerror or error}; --local runs the same without Slurm") from None
    except subprocess.TimeoutExpired:
        raise UserError(f"sbatch: no answer within {TIMEOUT_S:g} s; squeue shows whether it was accepted") from None
    number = answer.stdout.decode(errors="replace").strip().partition(";")[0]
    if answer.returncode or not number.isdecimal():
        words = (answer.stderr.strip() or answer.stdout.strip()).decode(errors="replace").split()
        raise UserError(f"sbatch: {' '.join(words).removeprefix('sbatch: ') or f'exit status {answer.returncode}'}")
    return int(number)


def sbatch_environment(environment: Mapping[str, str], options: Collection[str]) -> dict[str, str]:
    """`environment` without the variables that would win over `options`, which the script sets, and without those of a
    job that we may be in: its sizes are not ours, and sbatch hands them on.
    """
    ours = {_VARIABLES.get(key, f"SBATCH_{key.replace('-', '_').upper()}") for key in options}
    return {
        name: value
        for name, value in environment.items()
        if name not in ours and (not name.startswith("SLURM_") or name in _CONTROLLER_VARIABLES)
    }
