"""Setups and programs in one environment: real processes that wait for each other, and some that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.tools.known import known
from zerobench.common.environment_locks import LOCK, keep_in_use, set_up_alone, unused
from zerobench.emulator.outdated import KEPT_S, remove_old_builds

PATIENCE_S = 60.0

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a program of Python that ends after a minute, or with the test."""
    with ExitStack() as stack:

        def run(*arguments: str | Path) -> subprocess.Popen[str]:
            command = [sys.executable, *map(str, arguments)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            end = threading.Timer(PATIENCE_S, process.kill)
            stack.callback(end.cancel)
            end.start()
            return process

        yield run


def setup(folder: Path, *steps: str) -> list[str | Path]:
    return ["-m", "tests.launch.run.standin_setup", folder, *steps]


RUNS = """
import sys
from pathlib import Path
from zerobench.common.environment_locks import keep_in_use
keep_in_use(Path(sys.argv[1]))
print("running", flush=True)
print(sys.stdin.readline(), end="", flush=True)
"""


def running(start: Start, folder: Path) -> subprocess.Popen[str]:
    """A program that runs in the environment `folder` until it is killed or told a line."""
    process = start("-c", RUNS, folder)
    assert known(process.stdout).readline() == "running\n"
    return process


def wait_for(path: Path) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < end_s, f"{path} did not appear"
        time.sleep(0.02)


def line_with(process: subprocess.Popen[str], words: str) -> str:
    """The next line of the process that has `words`."""
    return next((line for line in known(process.stdout) if words in line), f"no line with {words!r}")


SLOW = """
import sys, time
from pathlib import Path
began, go, made = map(Path, {paths!r})
with began.open("a") as file:
    file.write("x")
made.mkdir()
(made / "one").touch()
while not go.exists():
    time.sleep(0.02)
(made / "two").touch()
"""


def slow(began: Path, go: Path, made: Path) -> str:
    """A step that notes that it began, waits for `go`, and then makes its folder of two files."""
    return f"install={made}={SLOW.format(paths=[str(path) for path in (began, go, made)])}"


def test_a_second_setup_says_whom_it_waits_for_and_finds_all_done(start: Start, tmp_path: Path) -> None:
    step = slow(tmp_path / "began", tmp_path / "go", tmp_path / "made")
    first = start(*setup(tmp_path, step, "check==pass"))
    wait_for(tmp_path / "began")
    second = start(*setup(tmp_path, step, "check==pass"))
    assert f"waiting for another setup (process {first.pid} on {os.uname().nodename})" in line_with(second, "waiting")
    (tmp_path / "go").touch()
    assert "environment horovod is set up" in first.communicate()[0]
    assert "install: already done" in second.communicate()[0]
    assert (first.returncode, second.returncode) == (0, 0)
    assert (tmp_path / "began").read_text() == "x"


def test_the_setup_after_one_that_was_killed_waits_for_its_command_and_does_the_step_anew(
    start: Start, tmp_path: Path
) -> None:
    step = slow(tmp_path / "began", tmp_path / "go", tmp_path / "made")
    first = start(*setup(tmp_path, "before==pass", step, "check==pass"))
    wait_for(tmp_path / "made" / "one")
    first.kill()
    first.wait()
    again = start(*setup(tmp_path, "before==pass", step, "check==pass"))
    assert "waiting for another setup" in line_with(again, "waiting")
    assert not (tmp_path / "horovod" / "made.json").exists()
    (tmp_path / "go").touch()
    said = again.communicate()[0]
    assert again.returncode == 0
    assert "before: already done" in said
    assert "install: done" in said
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == ["one", "two"]
    assert (tmp_path / "began").read_text() == "xx"


@pytest.mark.parametrize("killed_after_s", [0.3, 0.6, 0.9, 1.2, 1.5])
def test_setup_goes_on_wherever_it_was_killed_with_all_that_it_started(
    start: Start, tmp_path: Path, killed_after_s: float
) -> None:
    made = [tmp_path / str(number) for number in range(8)]
    program = "import pathlib, time; made = pathlib.Path({!r}); made.mkdir(); time.sleep(0.1); (made / 'whole').touch()"
    steps = [f"step{made.index(path)}={path}={program.format(str(path))}" for path in made]
    command = [sys.executable, *map(str, setup(tmp_path, *steps, "check==pass"))]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    time.sleep(killed_after_s)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    again = start(*setup(tmp_path, *steps, "check==pass"))
    again.communicate()
    assert again.returncode == 0
    assert [(path / "whole").exists() for path in made] == [True] * 8
    assert json.loads((tmp_path / "horovod" / "steps.json").read_text()).keys() >= {f"step{n}" for n in range(8)}


def test_setup_changes_nothing_under_a_running_program_and_waits_until_it_ends(start: Start, tmp_path: Path) -> None:
    made = tmp_path / "made"
    old, new = (f"install={made}=import pathlib; pathlib.Path({str(made)!r}, '{n}').mkdir(parents=True)" for n in "12")
    start(*setup(tmp_path, old, "check==pass")).communicate()
    program = running(start, tmp_path / "horovod")
    changing = start(*setup(tmp_path, new, "check==pass"))
    assert "waiting for the programs that run in it to end" in line_with(changing, "waiting")
    assert [path.name for path in made.iterdir()] == ["1"]
    assert (tmp_path / "horovod" / "made.json").exists()
    program.kill()
    changing.communicate()
    assert [path.name for path in made.iterdir()] == ["2"]


def test_setup_of_what_is_made_checks_it_beside_running_programs(start: Start, tmp_path: Path) -> None:
    start(*setup(tmp_path, "install==pass", "check==pass")).communicate()
    program = running(start, tmp_path / "horovod")
    said = start(*setup(tmp_path, "install==pass", "check==pass")).communicate()[0]
    assert "waiting" not in said
    assert "environment horovod is set up" in said
    assert program.poll() is None


def test_a_setup_that_needs_to_change_nothing_looks_again_once_it_holds_the_lock(tmp_path: Path) -> None:
    answers = iter([False, True, True])  # another setup was killed between the first two
    with set_up_alone(tmp_path, lambda: next(answers), print):
        assert (tmp_path / ".lock").read_text() == f"process {os.getpid()} on {os.uname().nodename}\n"
        with unused(tmp_path) as is_unused:
            assert not is_unused
    assert next(answers, None) is None


def build(folder: Path, name: str, *, age_s: float) -> Path:
    """An emulator called `name` whose last use is `age_s` seconds ago."""
    path = folder / name
    path.mkdir()
    for file in (path / ".lock", path / "made.json"):
        file.touch()
    for used in (*path.iterdir(), path):
        os.utime(used, (time.time() - age_s,) * 2)
    return path


def test_an_old_build_goes_once_no_program_runs_on_it_and_those_of_other_torches_stay(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "proc").mkdir()
    current = build(tmp_path, "torch-2.13.0-py311-overlay-new", age_s=0)
    old = build(tmp_path, "torch-2.13.0-py311-overlay-old", age_s=KEPT_S + 60)
    other = build(tmp_path, "torch-2.12.0-py311-overlay-old", age_s=KEPT_S + 60)
    recent = build(tmp_path, "torch-2.13.0-py311-overlay-recent", age_s=60)
    program = running(start, old)
    os.utime(old / ".lock", (time.time() - KEPT_S - 60,) * 2)  # it has been running for long
    kind = "torch-2.13.0-py311-overlay"
    assert remove_old_builds(current, kind, tmp_path / "proc") == []
    assert old.is_dir()
    program.kill()
    program.wait()
    assert remove_old_builds(current, kind, tmp_path / "proc") == [old.name]
    assert [path.is_dir() for path in (current, old, other, recent)] == [True, False, True, True]


def test_a_program_that_has_an_old_build_on_its_path_keeps_it(tmp_path: Path) -> None:
    process = tmp_path / "proc" / "4711"
    process.mkdir(parents=True)
    current, old = (build(tmp_path, f"torch-2.13.0-{name}", age_s=KEPT_S + 60) for name in ("overlay-b", "overlay"))
    (process / "environ").write_text(f"PYTHONPATH={current}/overlay\0")
    assert remove_old_builds(current, "torch-2.13.0-overlay", tmp_path / "proc") == [old.name]
    old = build(tmp_path, "torch-2.13.0-overlay", age_s=KEPT_S + 60)
    (process / "environ").write_text(f"PYTHONPATH={old}/overlay\0")
    assert remove_old_builds(current, "torch-2.13.0-overlay", tmp_path / "proc") == []


def test_a_build_whose_lock_alone_was_taken_within_a_day_stays(tmp_path: Path) -> None:
    current, used, old = (build(tmp_path, f"torch-2.13.0-{name}", age_s=KEPT_S + 60) for name in ("now", "used", "old"))
    os.utime(used / ".lock")
    assert remove_old_builds(current, "torch-2.13.0", tmp_path / "proc") == [old.name]
    assert used.is_dir()


def test_the_rest_of_a_removal_that_was_killed_is_taken_away(tmp_path: Path) -> None:
    current = build(tmp_path, "torch-2.13.0-overlay", age_s=0)
    rest = build(tmp_path, ".removed-torch-2.12.0-overlay.4711", age_s=0)
    remove_old_builds(current, "torch-2.13.0-overlay", tmp_path / "proc")
    assert (rest.exists(), current.exists()) == (False, True)


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("kept")
    (tmp_path / ".lock").symlink_to("other")
    with unused(tmp_path) as is_unused:
        assert not is_unused
    assert (tmp_path / "other").read_text() == "kept"


def test_each_use_of_an_environment_is_noted_by_the_time_of_its_lock_the_first_and_every_later_one(
    tmp_path: Path,
) -> None:
    """By which one that nobody uses any more is found."""
    used_at_s = []
    for _ in range(3):
        keep_in_use(tmp_path)
        used_at_s.append((tmp_path / LOCK).stat().st_mtime)
        os.utime(tmp_path / LOCK, (0.0, 0.0))
    began_s = time.time() - PATIENCE_S
    assert [at_s > began_s for at_s in used_at_s] == [True] * 3


def _num_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_process_that_uses_an_environment_twice_holds_it_once_and_a_new_one_of_the_same_name_anew(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "environment"
    for _ in range(2):  # what was there is replaced
        folder.mkdir()
        before = _num_descriptors()
        keep_in_use(folder)
        held = _num_descriptors()
        keep_in_use(folder)
        assert _num_descriptors() == held == before + 1
        with unused(folder) as is_unused:
            assert not is_unused
        folder.rename(tmp_path / f"old {before}")


def test_a_folder_that_is_not_there_cannot_be_used_and_that_is_no_error(tmp_path: Path) -> None:
    keep_in_use(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []
