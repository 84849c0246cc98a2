"""`zerobench setup NAME`: make the separate environment of a strategy.

A list of steps, each a command without a shell or a function, recorded when done: an interrupted setup continues at the
step it stopped in, and one whose pins have changed restarts at the first step that reads them. A step's output goes to
a log next to it. The last step imports the modules of a rank; only then the environment counts as made. One setup at a
time works in an environment, and none changes it under programs that run in it (environment_locks.py): an emulator of
other downloads is another folder.

Horovod 0.28.1, its newest release, requests C++14 in two places, and torch's headers need C++17: both are patched in
the source before the build. It is built against Gloo, which it ships, without MPI and NCCL, for CPU ranks.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from zerobench.common import training_python
from zerobench.common.environment_locks import set_up_alone
from zerobench.common.environments import PACKAGES, VARIABLE, Environment, environment, environments_folder
from zerobench.common.errors import UserError, unknown_choice
from zerobench.common.resources import shipped
from zerobench.emulator.emulator import ENVIRONMENT, usable_torch
from zerobench.emulator.outdated import remove_old_builds
from zerobench.emulator.places import kind_of, places
from zerobench.launch.run.logs import last_line
from zerobench.launch.setup.emulator_environment import emulator_steps
from zerobench.launch.setup.setup_steps import CHECK, Step
from zerobench.records.folder import write_whole
from zerobench.records.store import read_json

HOROVOD = "0.28.1"
HOROVOD_BUILD = {
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
}
"""Variables read by Horovod's setup.py (docs/install.rst, "Environment Variables")."""

_STANDARDS = ("CMAKE_CXX_STANDARD 14", "CMAKE_CXX_STANDARD 17")
_PATCHED = ("CMakeLists.txt", "horovod/torch/CMakeLists.txt")
_IMPORTS = {
    "horovod": "import horovod.torch, zerobench.rank.loop.rank, zerobench.rank.loop.horovod_launcher",
    "tensorflow": "import zerobench.rank.tensorflow.rank, zerobench.rank.tensorflow.launcher",
}
"""Modules that a rank imports, by environment."""

_REFUSED = re.compile(
    r"DO NOT MATCH THE HASHES[^\n]*\n[ \t]*(?P<package>\S+)(?:[ \t][^\n]*)?\n"
    r"(?:[ \t]*Expected[^\n]*\n)+[ \t]*Got[ \t]+(?P<got>\w+)"
)
"""pip's message about a file whose hash is not listed."""

Say = Callable[[str], None]


def requirements(name: str) -> Path:
    """Return the file of pinned packages of environment `name`."""
    return shipped("requirements") / f"{name}.txt"


def steps(target: Environment, jobs: int = 1) -> list[Step]:
    """Return the steps that make `target`, in order, with `jobs` parallel compilers."""
    pip = [str(target.python), "-m", "pip", "--disable-pip-version-check"]
    pins = requirements(target.name)
    made = [
        Step("venv", [sys.executable, "-m", "venv", str(target.path)]),
        Step("packages", [*pip, "install"], takes="minutes, and 1 to 4 GB", requirements=pins),
    ]
    if target.name == "horovod":
        made += _horovod_steps(target, pip, jobs)
    check = [str(target.python), "-c", _IMPORTS[target.name]]
    return [*made, Step(CHECK, check, with_code=True, disturbs=False)]


def _horovod_steps(target: Environment, pip: Sequence[str], jobs: int) -> list[Step]:
    """Download Horovod's source, patch it, build it against the installed torch."""
    folder = target.path / "source"
    source = folder / f"horovod-{HOROVOD}"
    alone = ["--no-deps", "--no-build-isolation"]
    get = [*pip, "download", *alone, "--no-binary", "horovod", "--dest", str(folder)]
    return [
        Step("source", get, requirements=requirements("horovod-source"), clears=folder),
        Step("patch", action=lambda: unpack_and_patch(folder), reads="".join(_STANDARDS)),
        Step(
            "build",
            [*pip, "install", *alone, "--force-reinstall", str(source)],
            {**HOROVOD_BUILD, "MAKEFLAGS": f"-j{jobs}"},
            takes="5 to 20 minutes",
        ),
    ]


def unpack_and_patch(folder: Path) -> None:
    """Unpack Horovod's source in `folder` and patch it to compile as C++17.

    Raises UserError if the source is not the one this patch is for. Raises OSError, tarfile.TarError.
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


def set_up(name: str, folder: Path | None, say: Say, jobs: int = 1, *, is_verified: bool = True) -> Environment:
    """Make the environment `name` in `folder`, by default `environments_folder()`, or continue an interrupted setup.

    Without `is_verified`, packages without listed hashes are downloaded unchecked.

    Raises UserError if there is no such environment, a step failed, or the folder cannot be written.
    """
    if name not in (known := [*PACKAGES, ENVIRONMENT]):
        raise unknown_choice("NAME", name, known)
    target = environment(name, None if folder is None else folder.absolute())
    try:
        if name == ENVIRONMENT:
            _set_up_emulator(target, say, is_verified=is_verified)
        else:
            _set_up(target, lambda: steps(target, jobs), say)
    except OSError as error:
        raise UserError(f"setup {name}: {error.filename or target.path}: {error.strerror or error}") from None
    if target.path.parent != environments_folder():
        say(f"to use it: export {VARIABLE}={target.path.parent}")
    return target


def _set_up_emulator(target: Environment, say: Say, *, is_verified: bool) -> None:
    """Make the emulator for this interpreter's torch, and remove older builds of its kind that are not in use."""
    torch = usable_torch(target.path)
    where = places(target, torch)
    _set_up(where.build, lambda: emulator_steps(where, torch, is_verified=is_verified), say)
    for name in remove_old_builds(where.folder, kind_of(torch)):
        say(f"removed {name}: made from earlier requirements, not in use")


def _set_up(build: Environment, recipe: Callable[[], Iterable[Step]], say: Say) -> None:
    say(f"environment {build.name}: {build.path}")
    build.path.mkdir(parents=True, exist_ok=True)
    with set_up_alone(build.path, lambda: _must_change(build, recipe()), say) as lock:
        _make(build, recipe(), say, lock)


def _must_change(build: Environment, todo: Iterable[Step]) -> bool:
    """Return True if a step that running programs would notice is still to be done."""
    done = _read_done(build)
    return not build.made.exists() or not all(
        _is_done(step, done) for step in takewhile(lambda step: step.disturbs, todo)
    )


def _is_done(step: Step, done: Mapping[str, str]) -> bool:
    return done.get(step.name) == step.digest and (step.clears is None or step.clears.exists())


def _make(target: Environment, todo: Iterable[Step], say: Say, lock: int) -> None:
    """Do the missing steps; a step done again repeats all later ones."""
    before, done = _read_done(target), dict[str, str]()
    (target.path / "logs").mkdir(exist_ok=True)
    for step in todo:
        if step.name != CHECK and _is_done(step, before):
            say(f"  {step.name}: already done")
        else:
            if step.disturbs:
                before = {}
                target.made.unlink(missing_ok=True)
            _do(target, step, say, lock)
        done[step.name] = step.digest
        if not target.made.exists():  # else another setup may read it, which finds all done
            write_whole(_done_file(target), json.dumps(done, indent=1))
    write_whole(_done_file(target), json.dumps(done, indent=1))
    write_whole(target.made, json.dumps({"made_at_s": time.time(), "python": platform.python_version()}, indent=1))
    say(f"environment {target.name} is set up")


def _do(target: Environment, step: Step, say: Say, lock: int) -> None:
    log = target.path / "logs" / f"{step.name}.txt"
    say(f"  {step.name}{f' ({step.takes})' if step.takes else ''}, log: {log}")
    start = time.monotonic()
    if step.clears is not None and step.clears.exists():
        shutil.rmtree(step.clears)
    if step.action is not None:
        try:
            step.action()
        except tarfile.TarError as error:
            raise UserError(f"setup {target.name}: {step.name}: {error}") from None
    elif (code := _run(target, step, log, lock)) != 0:
        raise UserError(f"setup {target.name}: {step.name} failed with {code}: {_cause(log)}; see {log}")
    say(f"  {step.name}: done in {time.monotonic() - start:.0f} s")


def _cause(log: Path) -> str:
    """Return the last line of `log`; if pip refused a file for its hash, its name and hash instead."""
    words = log.read_text(encoding="utf-8", errors="replace")
    refused = _REFUSED.search(words)
    if refused is None:
        return last_line(log)
    return f"{refused['package']}: the downloaded file has sha256 {refused['got']}, which is not listed for it"


def _run(target: Environment, step: Step, log: Path, lock: int) -> int:
    """Run the command of `step`; its exit status. A PYTHONPATH of ours would lend the environment our packages."""
    ours = {"PYTHONPATH", "PYTHONHOME", training_python.VARIABLE}
    environ = {key: value for key, value in os.environ.items() if key not in ours}
    if step.with_code:
        environ["PYTHONPATH"] = str(target.code())
    with log.open("wb") as file:
        done = subprocess.run(
            step.command,
            env={**environ, **step.added},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            pass_fds=(lock,),  # it outlives a setup that is killed, and the next one waits for it
            check=False,
        )
    return done.returncode


def _done_file(target: Environment) -> Path:
    return target.path / "steps.json"


def _read_done(target: Environment) -> dict[str, str]:
    """Read the digests of finished steps by name; empty if the file cannot be read."""
    try:
        return read_json(_done_file(target))
    except UserError:
        return {}
