"""Makes an environment of its own for a strategy that needs one: `zerobench setup NAME`.

A list of steps, each a command without a shell or a function, written down as it is done: setup that was stopped goes
on at the step that it was stopped in, and one whose pins have changed since begins with the first step that reads them.
What a step prints goes to a log beside it. The last step imports what a rank will import; only then the environment
counts as made. One setup at a time is in an environment, and none changes it under programs that run in it
(environment_locks.py): an emulator of other downloads is another folder.

Horovod 0.28.1, its newest release, says C++14 in two places, and torch's headers need C++17: both are patched in the
source before it is built. It is built against Gloo, which it brings, without MPI and without NCCL, for CPU ranks.
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
"""What its setup.py reads (docs/install.rst, "Environment Variables")."""

_STANDARDS = ("CMAKE_CXX_STANDARD 14", "CMAKE_CXX_STANDARD 17")
_PATCHED = ("CMakeLists.txt", "horovod/torch/CMakeLists.txt")
_IMPORTS = {
    "horovod": "import horovod.torch, zerobench.rank.loop.rank, zerobench.rank.loop.horovod_launcher",
    "tensorflow": "import zerobench.rank.tensorflow.rank, zerobench.rank.tensorflow.launcher",
}
"""What a rank imports, by environment."""

_REFUSED = re.compile(
    r"DO NOT MATCH THE HASHES[^\n]*\n[ \t]*(?P<package>\S+)(?:[ \t][^\n]*)?\n"
    r"(?:[ \t]*Expected[^\n]*\n)+[ \t]*Got[ \t]+(?P<got>\w+)"
)
"""Pip's words for a file whose hash is not the listed one."""

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
        Step("packages", [*pip, "install"], takes="minutes, and 1 to 4 GB", requirements=pins),
    ]
    if target.name == "horovod":
        made += _horovod_steps(target, pip, jobs)
    check = [str(target.python), "-c", _IMPORTS[target.name]]
    return [*made, Step(CHECK, check, with_code=True, disturbs=False)]


def _horovod_steps(target: Environment, pip: Sequence[str], jobs: int) -> list[Step]:
    """Get its source, patch it, build it against the torch that is installed."""
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


def set_up(name: str, folder: Path | None, say: Say, jobs: int = 1, *, is_verified: bool = True) -> Environment:
    """Make the environment `name` in `folder`, by default `environments_folder()`, or go on where it was left.

    Without `is_verified`, packages for which no hashes are listed are downloaded unchecked.

    Raises UserError: there is no environment of that name, a step failed, or the folder cannot be written.
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
    """Make the emulator for this interpreter's torch, and remove those of its kind that are no longer in use."""
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
    """Whether a step is to be done that programs in the environment would notice."""
    done = _read_done(build)
    return not build.made.exists() or not all(_is_done(step, done) for step in takewhile(_disturbs, todo))


def _disturbs(step: Step) -> bool:
    return step.disturbs


def _is_done(step: Step, done: Mapping[str, str]) -> bool:
    return done.get(step.name) == step.digest and (step.clears is None or step.clears.exists())


def _make(target: Environment, todo: Iterable[Step], say: Say, lock: int) -> None:
    """Do what is not done yet; a step that must be done again has all later ones done again."""
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
    """The last line of `log`; where pip refused a file for its hash, which one and why."""
    words = log.read_text(encoding="utf-8", errors="replace")
    refused = _REFUSED.search(words)
    if refused is None:
        return last_line(log)
    return f"{refused['package']}: the downloaded file has sha256 {refused['got']}, which is not listed for it"


def _run(target: Environment, step: Step, log: Path, lock: int) -> int:
    """Run the command of `step`; its exit status. A PYTHONPATH of ours would lend the environment our packages."""
    environ = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "PYTHONHOME"}}
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
    """Digests of the steps that were done, by name; none where nothing can be read."""
    try:
        return read_json(_done_file(target))
    except UserError:
        return {}
