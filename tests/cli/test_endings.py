"""How the program ends where the world around it does not do as usual: one line, or nothing, and never a traceback."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Call
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
