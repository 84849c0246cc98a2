"""How a trial is started whose ranks run in an environment of their own: pure functions of the trial.

That environment has no DeepSpeed, so not its launcher either: its Python runs a small one that knows what the engine's
ranks need to find each other, and starts them on this machine (zerobench.common.rank_processes).
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
"""The module that starts the ranks, by environment."""


def environment_argv(python: Path, name: str, folder: TrialFolder) -> list[str]:
    """The command that runs the trial in `folder` by the interpreter of the environment `name`.

    Where that has no torch, ours draws the weights.
    """
    start = ["--start-python", sys.executable] if name == "tensorflow" else []
    return [str(python), "-u", "-m", LAUNCHERS[name], "--trial-folder", str(folder.path), *start]


def environment_variables(code: Path, port: int) -> dict[str, str]:
    """What its processes have beyond launch_environment: zerobench's code, and where torch's own group meets."""
    return {"PYTHONPATH": str(code), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def made_environment(name: str) -> tuple[Environment, Path]:
    """The environment `name`, and the folder by which its Python finds zerobench.

    Raises UserError: it is not made, or cannot be written.
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
