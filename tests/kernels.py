"""DeepSpeed's kernels, compiled in the background while tests run that need none."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COMPILER = pytest.StashKey[subprocess.Popen[bytes]]()
FIXTURE = "kernels"
LONGEST_S = 1500.0


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin, in one of the session's processes, where a test was collected that needs them."""
    if session.config.option.collectonly or os.environ.get("PYTEST_XDIST_WORKER", "gw0") != "gw0":
        return
    if any(FIXTURE in getattr(item, "fixturenames", ()) for item in session.items):
        session.config.stash[COMPILER] = _compiler()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End what is left of it, where the session was cut short."""
    if (compiler := config.stash.get(COMPILER, None)) and compiler.poll() is None:
        _end(compiler)


@pytest.fixture(scope="session")
def kernels(request: pytest.FixtureRequest) -> None:
    """All kernels are compiled."""
    compiler = request.config.stash.get(COMPILER, None) or _compiler()
    try:
        compiler.wait(timeout=LONGEST_S)
    finally:
        if compiler.poll() is None:
            _end(compiler)


def _compiler() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.tools.compile_kernels"]
    nothing = subprocess.DEVNULL
    return subprocess.Popen(command, cwd=ROOT, stdin=nothing, stdout=nothing, start_new_session=True)


def _end(compiler: subprocess.Popen[bytes]) -> None:
    """With the C++ compilers that it started. It is asked and not killed, and so leaves no lock."""
    os.killpg(compiler.pid, signal.SIGTERM)
    compiler.wait(timeout=60)
