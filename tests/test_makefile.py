"""The commands of the Makefile that are more than one command, run by make itself in an environment that is there."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = Path(sys.executable).parents[1]
THIS = (f"VENV={ENVIRONMENT}", f"--assume-old={ENVIRONMENT / 'installed'}")
"""Make in this environment, which is taken as it is: nothing is installed."""

CELL = """
name: one-cell
axes: {model: llama-20m, strategy: zero1, world_size: 2}
"""


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of one trial."""
    path = tmp_path_factory.mktemp("sweep") / "one-cell.yaml"
    path.write_text(CELL)
    return path


def test_a_measured_half_that_failed_does_not_keep_the_prediction_and_still_fails_the_whole(
    cell: Path, tmp_path: Path
) -> None:
    ended = make(
        *THIS, "sweep", "SWEEP=no-such-sweep", f"PREDICTED={cell} --gpus 2 --gpu h200 --formula --reports {tmp_path}"
    )
    assert "no-such-sweep" in ended.stderr
    [run] = tmp_path.iterdir()
    assert (run / "plan.json").exists()
    assert ended.returncode == 2


def test_a_prediction_that_failed_fails_the_whole(cell: Path, tmp_path: Path) -> None:
    ended = make(*THIS, "sweep", f"SWEEP={cell} --dry-run --reports {tmp_path}", "PREDICTED=no-such-sweep")
    assert "no-such-sweep" in ended.stderr
    assert ended.returncode == 2


def test_the_wait_for_pip_shows_progress(tmp_path: Path) -> None:
    said = make("--dry-run", f"VENV={tmp_path}", "test")
    installs = [line for line in said.stdout.splitlines() if " pip install " in line]
    assert len(installs) == 2
    assert not [line for line in installs if "--quiet" in line or " -q" in line]


@pytest.mark.parametrize(
    ("room_gib", "cores", "flags", "given", "expected"),
    [
        (17, 2, "avx512_bf16 amx_tile", [], 3),
        (15, 2, "avx512_bf16 amx_tile", [], 2),
        (17, 1, "avx512_bf16 amx_tile", [], 2),
        (17, 2, "avx2", [], 2),
        (None, 0, "", [], 2),  # where no file says
        (15, 2, "avx2", ["PROCESSES=4"], 4),
    ],
)
def test_three_processes_test_where_there_is_memory_and_bf16_is_quick(
    tmp_path: Path, room_gib: int | None, cores: int, flags: str, given: list[str], expected: int
) -> None:
    memory, processor = tmp_path / "meminfo", tmp_path / "cpuinfo"
    if room_gib is not None:
        memory.write_text(f"MemTotal: 99999999 kB\nMemAvailable: {room_gib << 20} kB\n")
        processor.write_text(f"processor: 0\nmodel name: one\nflags: fpu {flags}\n\n" * cores)
    said = make("--dry-run", f"VENV={tmp_path}", f"MACHINE={memory} {processor}", *given, "test")
    assert f" --numprocesses {expected} --dist " in said.stdout


@pytest.mark.parametrize(
    ("exits", "again", "runs", "ended"),
    [
        ([0, 0], "yes", ["together", "alone"], 0),
        ([1, 0, 0, 0], "yes", ["together", "may they", "failed", "alone"], 0),
        ([1, 0, 1], "yes", ["together", "may they", "failed"], 2),
        ([1, 1], "yes", ["together", "may they"], 2),
        ([3], "yes", ["together"], 2),  # pytest itself broke: what it did not run is in no list of failures
        ([1], "", ["together"], 2),
    ],
)
def test_what_failed_is_tried_once_more_where_that_is_asked_and_must_pass_then(
    tmp_path: Path, exits: list[int], again: str, runs: list[str], ended: int
) -> None:
    pytest_of = tmp_path / "python"
    (tmp_path / "exits").write_text("".join(f"{code}\n" for code in exits))
    pytest_of.write_text(
        f'#!/bin/sh\necho "$*" >> {tmp_path}/ran\ncode=$(head -1 {tmp_path}/exits)\n'
        f"sed -i 1d {tmp_path}/exits\nexit $code\n"
    )
    pytest_of.chmod(0o755)
    done = make(*THIS, f"--assume-old={ENVIRONMENT / 'installed-dev'}", "test", f"BIN={tmp_path}", f"AGAIN={again}")
    ways = {"-m not alone": "together", "tests.tools.again": "may they", "--last-failed": "failed", "-m alone": "alone"}
    ran = [
        next(way for mark, way in ways.items() if mark in line)
        for line in (tmp_path / "ran").read_text().split("\n")[:-1]
    ]
    assert (ran, done.returncode) == (runs, ended)
