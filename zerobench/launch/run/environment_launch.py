"""Launch command of ranks in a separate environment: pure functions of the trial.

That environment has no DeepSpeed and so no deepspeed launcher: its Python runs a small launcher that sets the variables
by which ranks find each other, and starts them on this machine (zerobench.common.rank_processes).
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from zerobench.common.environment_locks import keep_in_use
from zerobench.common.environments import Environment, environment
from zerobench.common.errors import UserError
from zerobench.records.folder import TrialFolder, writing

LAUNCHERS: Mapping[str, str] = {
    "horovod": "zerobench.rank.loop.horovod_launcher",
    "tensorflow": "zerobench.rank.tensorflow.launcher",
}
"""Launcher module by environment."""


def environment_argv(python: Path, name: str, folder: TrialFolder) -> list[str]:
    """Return the command that runs the trial in `folder` with the interpreter of environment `name`.

    If that has no torch, our interpreter draws the weights.
    """
    start = ["--start-python", sys.executable] if name == "tensorflow" else []
    return [str(python), "-u", "-m", LAUNCHERS[name], "--trial-folder", str(folder.path), *start]


def environment_variables(code: Path, port: int) -> dict[str, str]:
    """Variables added to launch_environment: zerobench's code, and the meeting point of torch's process group."""
    return {"PYTHONPATH": str(code), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def made_environment(name: str) -> tuple[Environment, Path]:
    """Return the environment `name` and the folder from which its Python imports zerobench.

    Raises UserError if it is not set up or cannot be written.
    """
    wanted = environment(name)
    if wanted.is_made:
        keep_in_use(wanted.path)
    if not wanted.is_made:
        raise UserError(
            f"strategy: {name}: its environment is not set up in {wanted.path}; run: zerobench setup {name}"
        )
    with writing(f"strategy: {name}: {wanted.path}"):
        return wanted, wanted.code()
