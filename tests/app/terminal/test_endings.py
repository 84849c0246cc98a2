"""How the program ends where the world around it does not do as usual: one line, or nothing, and never a traceback."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.app.terminal.conftest import Call
from tests.tools.refusals import refused

ZEROBENCH = [sys.executable, "-m", "zerobench"]
NOTHING_TO_DO = ["run", "quickstart", "--set", "world_size=4096", "--only", "strategy=zero1"]


@pytest.fixture(autouse=True)
def buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As people run it: what a failed write left in the buffer fails once more as the interpreter ends."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


@pytest.mark.parametrize("arguments", [["--help"], NOTHING_TO_DO])
def test_output_that_cannot_be_written_is_one_line_and_exit_status_2(tmp_path: Path, arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [*ZEROBENCH, *arguments], check=False, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == 2
    assert ended.stderr.startswith("zerobench: standard output")
    assert ended.stderr.endswith("No space left on device\n" if arguments != NOTHING_TO_DO else "are kept\n")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--help"], NOTHING_TO_DO])
def test_output_that_nobody_reads_ends_the_program_as_a_broken_pipe_does_without_a_word(
    tmp_path: Path, arguments: list[str]
) -> None:
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [*ZEROBENCH, *arguments], check=False, cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert (ended.returncode, ended.stderr) == (141, "")


@pytest.mark.parametrize("closed", [(1,), (0, 1, 2)], ids=["output", "all"])
def test_a_program_that_is_started_with_its_output_closed_does_its_work(
    tmp_path: Path, closed: tuple[int, ...]
) -> None:
    ended = subprocess.run(
        ["sh", "-c", f'exec "$@" {" ".join(f"{one}>&-" for one in closed)}', "sh", *ZEROBENCH, *NOTHING_TO_DO],
        check=False,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert (ended.returncode, ended.stderr.count("Traceback")) == (0, 0)
    assert list(tmp_path.glob("reports/quickstart_*/plan.json"))


def test_a_report_where_addresses_are_scarce_says_which_limit_and_what_goes_without(call: Call, tmp_path: Path) -> None:
    call("plan", "--model", "llama-7b", "--gpus", "8", "--gpu", "h200", "--formula", "--stage", "3")

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (3_000_000 * 1024, 3_000_000 * 1024))

    ended = subprocess.run(
        [*ZEROBENCH, "report"], check=False, cwd=tmp_path, preexec_fn=limited, capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("zerobench: report: drawing charts needs 65 GiB of address space")
    assert ended.stderr.count("\n") == 1
    assert not list(tmp_path.rglob("*.html"))


def looped(folder: Path) -> str:
    (folder / "loop").symlink_to("loop")
    return "loop"


@pytest.mark.parametrize("verb", [["show"], NOTHING_TO_DO])
@pytest.mark.parametrize(
    ("reports", "words"),
    [
        (lambda _: "x" * 400, "File name too long"),
        (lambda _: os.fsdecode(b"a\xffb"), r"'a\udcffb': not valid UTF-8"),
        (looped, "--reports: loop: Too many levels of symbolic links"),
    ],
)
def test_a_folder_for_reports_that_can_be_none_is_one_line(
    call: Call, tmp_path: Path, verb: list[str], reports, words: str
) -> None:
    answer = call(*verb, "--reports", reports(tmp_path))
    refused(answer, words)
    assert len(answer[2]) < 300


@pytest.mark.parametrize("option", ["--nodes", "--gpus-per-node"])
def test_more_nodes_than_there_can_be_are_refused_at_once(call: Call, option: str) -> None:
    before = time.process_time()
    code, _, err = call(
        "submit", "quickstart", "--nodes", "1", "--gpus-per-node", "8", "--dry-run", option, "2147483648"
    )
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"zerobench: {option}: ")
    assert "1048576" in err
    assert time.process_time() - before < 5


FORMULA = ["run", "quickstart", "--set", "evidence=formula"]
ROOM = "raise the limit of a file's size (ulimit -f), or write elsewhere (--out, --reports)"
DEAD = 999_999_999
"""More than the kernel gives out as the number of a process."""


@pytest.fixture(scope="module")
def ended_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended."""
    folder = tmp_path_factory.mktemp("ended")
    subprocess.run([*ZEROBENCH, *FORMULA], check=True, cwd=folder, capture_output=True)
    [run] = folder.glob("reports/quickstart_*")
    return run


@pytest.fixture
def made(ended_run: Path, tmp_path: Path) -> Path:
    """A copy of the run under `reports`."""
    return Path(shutil.copytree(ended_run, tmp_path / "reports" / ended_run.name))


def limited_to(size_bytes: int, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program that can write no larger file, as if a disk had no more room; needs no privilege."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))

    command = [*ZEROBENCH, *arguments]
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # Python would keep bytecode that is cut short
    return subprocess.run(
        command, check=False, cwd=folder, env=environ, preexec_fn=limit, capture_output=True, text=True
    )


@pytest.mark.parametrize("option", ["--html", "--json", "--markdown"])
def test_a_report_that_finds_no_room_names_its_file_and_what_to_do(made: Path, tmp_path: Path, option: str) -> None:
    ended = limited_to(2048, tmp_path, "report", made.name, *([option] if option != "--html" else []), "--out", "kept")
    assert ended.returncode == 2
    assert ended.stderr == f"zerobench: --out: kept: cannot be written: File too large; {ROOM}\n"
    assert not list(tmp_path.glob("*kept*"))


def test_a_run_that_finds_no_room_for_its_documents_names_the_file_and_what_to_do(tmp_path: Path) -> None:
    ended = limited_to(1024, tmp_path, *FORMULA)
    [run] = tmp_path.glob("reports/quickstart_*")
    assert ended.returncode == 2
    [line] = [line for line in ended.stderr.splitlines() if line.startswith("zerobench: --reports")]
    assert line.startswith(f"zerobench: --reports: reports: cannot be written: {run}/")
    assert line.endswith(f": File too large; {ROOM}")
    assert not list(run.rglob("*.tmp"))


def test_a_run_that_finds_no_room_for_its_tables_names_the_file_and_goes_on_with_resume(
    made: Path, tmp_path: Path
) -> None:
    tables = sorted(made.glob("*.parquet"))
    assert len(tables) == 4
    for table in tables:
        table.unlink()
    ended = limited_to(3072, tmp_path, "run", "--resume", str(made))
    assert ended.returncode == 2
    [line] = [line for line in ended.stderr.splitlines() if line.startswith("zerobench:")]
    assert line == (
        f"zerobench: {made}/memory.parquet: File too large; {ROOM}; measurements are kept, "
        f"continue with: zerobench run --resume {made}"
    )
    assert not list(made.rglob("*.tmp"))
    subprocess.run([*ZEROBENCH, "run", "--resume", str(made)], check=True, cwd=tmp_path, capture_output=True)
    assert sorted(made.glob("*.parquet")) == tables


@pytest.mark.parametrize("arguments", [FORMULA, ["watch", "--", "true"], ["report"]])
def test_a_working_directory_that_was_deleted_is_said_to_be(tmp_path: Path, arguments: list[str]) -> None:
    words = 'cd gone && rmdir ../gone && exec "$@"'
    (tmp_path / "gone").mkdir()
    ended = subprocess.run(
        ["sh", "-c", words, "sh", *ZEROBENCH, *arguments], check=False, cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("zerobench: working directory: deleted; change to one that exists (cd)")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("again", [["run", "--resume", "{run}"], FORMULA], ids=["resume", "next run"])
def test_what_a_killed_run_left_half_written_is_taken_away_and_what_live_ones_write_stays(
    made: Path, tmp_path: Path, again: list[str]
) -> None:
    left = [made / f".memory.parquet.{DEAD}.tmp", made.parent / f".page.html.{DEAD}.0123abcd.tmp"]
    living = made / f".errors.parquet.{os.getpid()}.tmp"
    if "--resume" in again:
        left[1] = next(made.glob("trials/*")) / f".record.json.{DEAD}.0123abcd.tmp"
    for path in (*left, living):
        path.touch()
    command = [*ZEROBENCH, *(word.format(run=made) for word in again)]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True)
    assert [path.exists() for path in (*left, living)] == [False, False, True]
