"""Call sbatch, whose answer must not be lost: it has then accepted a job."""

import os
import re
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path

from zerobench.common.errors import UserError

TIMEOUT_S = 120.0

_CONTROLLER_VARIABLES = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT"}
"""Variables that select the controller for Slurm's programs."""
_VARIABLES = {
    "array": "SBATCH_ARRAY_INX",
    "time": "SBATCH_TIMELIMIT",
    "requeue": "SBATCH_NO_REQUEUE",
    "mem": "SBATCH_MEM_PER_NODE",
}
"""sbatch's variables (sbatch(1), INPUT ENVIRONMENT VARIABLES) not named SBATCH_ plus the option."""
_OPTION = re.compile(r"^#SBATCH \"?--([a-z-]+)", re.MULTILINE)


def sbatch(script: Path) -> int:
    """Submit `script` and return its job's id.

    Raises UserError if Slurm refuses it, does not answer, or is absent.
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
    """Return `environment` without variables that would override `options`, which the script sets, and without those of
    the current job, if any: its sizes are not ours, and sbatch passes them on.
    """
    ours = {_VARIABLES.get(key, f"SBATCH_{key.replace('-', '_').upper()}") for key in options}
    return {
        name: value
        for name, value in environment.items()
        if name not in ours and (not name.startswith("SLURM_") or name in _CONTROLLER_VARIABLES)
    }
