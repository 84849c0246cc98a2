"""Makes an environment of its own for a strategy that needs one: `zerobench setup NAME`.

A list of steps, each a command without a shell or a function, written down as it is done: setup that was stopped goes
on at the step that it was stopped in, and one whose pins have changed since begins with the first step that reads them.
What a step prints goes to a log beside it. The last step imports what a rank will import; only then the environment
counts as made.

Horovod 0.28.1, its newest release, says C++14 in two places, and torch's headers need C++17: both are patched in the
source before it is built. It is built against Gloo, which it brings, without MPI and without NCCL, for CPU ranks.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from zerobench.emulator.emulator import ENVIRONMENT
from zerobench.environments import PACKAGES, VARIABLE, Environment, environment, environments_folder
from zerobench.errors import UserError, unknown_choice
from zerobench.folder import write_whole
from zerobench.resources import shipped
from zerobench.running.emulator_environment import emulator_steps
from zerobench.running.logs import last_line
from zerobench.running.setup_steps import CHECK, Step
from zerobench.store import read_json

HOROVOD = "0.28.1"
HOROVOD_BUILD = {
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
}
"""What its setup.py reads (docs/install.rst, "Environment Variables")."""

_STANDARDS = ("CMAKE_CXX_STANDARD 14", "CMAKE_CXX_STANDARD 17")
_PATCHED = ("CMakeLists.txt", "horovod/torch/CMakeLists.txt")
_IMPORTS = {
    "horovod": "import horovod.torch, zerobench.worker.rank, zerobench.worker.horovod_launcher",
    "tensorflow": "import zerobench.worker_tensorflow.rank, zerobench.worker_tensorflow.launcher",
}
"""What a rank imports, by environment."""

Say = Callable[[str], None]


def requirements(name: str) -> Path:
    """The pinned packages of environment `name`, as pip takes them."""
    return shipped("requirements") / f"{name}.txt"


def steps(target: Environment, jobs: int = 1) -> list[Step]:
    """What makes `target`, in order; `jobs` compilers at a time."""
    pip = [str(target.python), "-m", "pip", "--disable-pip-version-check"]
    pins = requirements(target.name)
    made = [
        Step("venv", [sys.executable, "-m", "venv", str(target.path)]),
        Step(
            "packages",
            [*pip, "install", "--requirement", str(pins)],
            takes="minutes, and 1 to 2 GB",
            reads=pins.read_text(encoding="utf-8"),
        ),
    ]
    if target.name == "horovod":
        made += _horovod_steps(target, pip, jobs)
    return [*made, Step(CHECK, [str(target.python), "-c", _IMPORTS[target.name]], with_code=True)]


def _horovod_steps(target: Environment, pip: Sequence[str], jobs: int) -> list[Step]:
    """Get its source, patch it, build it against the torch that is installed."""
    folder = target.path / "source"
    source = folder / f"horovod-{HOROVOD}"
    alone = ["--no-deps", "--no-build-isolation"]
    exact = ["--no-binary", "horovod", "--dest", str(folder), f"horovod=={HOROVOD}"]
    return [
        Step("source", [*pip, "download", *alone, *exact]),
        Step("patch", action=lambda: unpack_and_patch(folder), reads="".join(_STANDARDS)),
        Step(
            "build",
            [*pip, "install", *alone, "--force-reinstall", str(source)],
            {**HOROVOD_BUILD, "MAKEFLAGS": f"-j{jobs}"},
            takes="5 to 20 minutes",
        ),
    ]


def unpack_and_patch(folder: Path) -> None:
    """Unpack Horovod's source in `folder` anew and have it built as C++17.

    Raises UserError: the source is not the one that this patch is for. Raises OSError, tarfile.TarError.
    """
    source = folder / f"horovod-{HOROVOD}"
    shutil.rmtree(source, ignore_errors=True)
    with tarfile.open(folder / f"{source.name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    for name in _PATCHED:
        text = (source / name).read_text(encoding="utf-8")
        if _STANDARDS[0] not in text:
            raise UserError(f"setup horovod: {source / name} lacks {_STANDARDS[0]}: not the source of {HOROVOD}")
        (source / name).write_text(text.replace(*_STANDARDS), encoding="utf-8")


def set_up(name: str, folder: Path | None, say: Say, jobs: int = 1) -> Environment:
    """Make the environment `name` in `folder`, by default `environments_folder()`, or go on where it was left.

    Raises UserError: there is no environment of that name, a step failed, or the folder cannot be written.
    """
    if name not in (known := [*PACKAGES, ENVIRONMENT]):
        raise unknown_choice("NAME", name, known)
    target = environment(name, None if folder is None else folder.absolute())
    say(f"environment {name}: {target.path}")
    try:
        target.path.mkdir(parents=True, exist_ok=True)
        _make(target, emulator_steps(target) if name == ENVIRONMENT else steps(target, jobs), say)
    except OSError as error:
        raise UserError(f"setup {name}: {error.filename or target.path}: {error.strerror or error}") from None
    if target.path.parent != environments_folder():
        say(f"to use it: export {VARIABLE}={target.path.parent}")
    return target


def _make(target: Environment, todo: Iterable[Step], say: Say) -> None:
    """Do what is not done yet; a step that must be done again has all later ones done again."""
    before, done = _read_done(target), dict[str, str]()
    (target.path / "logs").mkdir(exist_ok=True)
    for step in todo:
        if before.get(step.name) == step.digest and step.name != CHECK:
            say(f"  {step.name}: already done")
        else:
            before = {}
            target.made.unlink(missing_ok=True)
            _do(target, step, say)
        done[step.name] = step.digest
        write_whole(_done_file(target), json.dumps(done, indent=1))
    write_whole(target.made, json.dumps({"made_at_s": time.time(), "python": platform.python_version()}, indent=1))
    say(f"environment {target.name} is set up")


def _do(target: Environment, step: Step, say: Say) -> None:
    log = target.path / "logs" / f"{step.name}.txt"
    say(f"  {step.name}{f' ({step.takes})' if step.takes else ''}, log: {log}")
    start = time.monotonic()
    if step.action is not None:
        try:
            step.action()
        except tarfile.TarError as error:
            raise UserError(f"setup {target.name}: {step.name}: {error}") from None
    elif (code := _run(target, step, log)) != 0:
        raise UserError(f"setup {target.name}: {step.name} failed with {code}: {last_line(log)}; see {log}")
    say(f"  {step.name}: done in {time.monotonic() - start:.0f} s")


def _run(target: Environment, step: Step, log: Path) -> int:
    """Run the command of `step`; its exit status. A PYTHONPATH of ours would lend the environment our packages."""
    environ = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "PYTHONHOME"}}
    if step.with_code:
        environ["PYTHONPATH"] = str(target.code())
    with log.open("wb") as file:
        done = subprocess.run(
            list(step.argv),
            env={**environ, **step.added},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return done.returncode


def _done_file(target: Environment) -> Path:
    return target.path / "steps.json"


def _read_done(target: Environment) -> dict[str, str]:
    """Digests of the steps that were done, by name; none where nothing can be read."""
    try:
        return read_json(_done_file(target))
    except UserError:
        return {}
