"""Programs that run on the emulated GPU, in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zerobench.emulator.emulator import find_emulator
from zerobench.emulator.gpu import EmulatedGpu
from zerobench.errors import UserError
from zerobench.spec.gpu_names import known_gpu

ROOT = Path(__file__).parents[3]

Played = Callable[..., dict[str, Any]]
"""Runs a program of this folder with arguments; the JSON of its last line."""


@pytest.fixture(scope="session")
def played() -> Played:
    try:
        emulator = find_emulator()
    except UserError as error:
        pytest.skip(str(error))
    variables = emulator.variables(EmulatedGpu.of(known_gpu("H200")), environ={})
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [variables.get("PYTHONPATH"), str(ROOT)]))

    def play(program: str, *arguments: str) -> dict[str, Any]:
        command = [str(emulator.python), str(Path(__file__).with_name(program)), *arguments]
        done = subprocess.run(
            command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer

    return play
