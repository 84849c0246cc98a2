"""The emulated GPU for tests: made once a session where it is not made, and programs that run on it.

Where it cannot be made for want of a network the tests skip; any other reason is a failure.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tools import forked_zerobench
from zerobench.common.environments import VARIABLE, environment
from zerobench.common.errors import UserError
from zerobench.config.hardware.hardware import known_gpu
from zerobench.emulator.emulator import ENVIRONMENT, Emulator, find_emulator, usable_torch
from zerobench.emulator.gpu import EmulatedGpu
from zerobench.emulator.places import is_made, places
from zerobench.launch.setup.environment_setup import set_up

_DOWNLOADS = ("torch", "triton", "headers")
"""The steps that need a network."""

_END = "\nimport os, sys\nsys.stdout.flush()\nos._exit(0)\n"
"""What each program ends with. The interpreter's own end takes the lock away from torch's threads, and one that still
frees what the last backward pass held, or a group of NCCL's, aborts the process: one run in eighty."""

Emulated = Callable[..., Any]


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Emulator:
    """The emulator as it was made on this machine, else made for this session, by one of its processes."""
    own = environment(ENVIRONMENT)
    torch = usable_torch(own.path)
    if is_made(places(own, torch), torch):
        return find_emulator()
    folder = of_all(tmp_path_factory, worker_id) / "environments"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            made = set_up(ENVIRONMENT, folder, print)
        except UserError as error:
            if str(error).startswith(tuple(f"setup {ENVIRONMENT}: {step} failed" for step in _DOWNLOADS)):
                pytest.skip(f"the emulated GPU cannot be downloaded: {error}")
            raise
    os.environ[VARIABLE] = str(folder)  # for the commands that the tests start
    assert made == environment(ENVIRONMENT)
    return find_emulator()


def of_all(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder that all processes of the session have in common."""
    base = tmp_path_factory.getbasetemp()
    return base if worker_id == "master" else base.parent


@pytest.fixture(scope="session")
def emulated(emulator: Emulator, request: pytest.FixtureRequest) -> Emulated:
    """Run a Python program on the emulated GPU; what it printed as its last line, read as JSON. It is a fork of a
    process with torch (rank_forker.py), but where it is given variables, which libraries read as they are loaded.
    """

    def run(
        program: str, *arguments: str, gpu: str = "H200", num_gpus: int = 1, account: Path | None = None, **added: str
    ) -> Any:
        variables = emulator.variables(EmulatedGpu.build(known_gpu(gpu)), num_gpus, account)
        environ = {**os.environ, **variables, **added}
        python = [str(emulator.python)]
        if not added:
            python = forked_zerobench.LAUNCHER
            environ |= request.getfixturevalue("forked_scripts")
        command = [*python, "-c", program + _END, *arguments]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
