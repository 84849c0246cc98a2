"""Calls of Slurm's programs: what is not there, hangs or fails must never hold up or break who asks."""

import os
import sys
import time
from pathlib import Path

import psutil

from zerobench.launch.slurm.client import ask, client_environment, run_client


def test_a_program_that_is_not_installed_says_nothing() -> None:
    assert run_client(["squeue-of-nowhere", "--json"], 5.0) is None


def test_a_program_that_fails_says_nothing_and_its_refusal_can_be_read() -> None:
    argv = [sys.executable, "-c", "import sys; print('half'); sys.exit('Invalid job id specified')"]
    assert run_client(argv, 5.0) is None
    answer = ask(argv, 5.0)
    assert answer is not None
    assert (answer.stdout, answer.stderr, answer.exit_code) == ("half\n", "Invalid job id specified\n", 1)


def test_a_program_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    wrapper = f"sleep 61 & echo $! > {pids}; echo $$ >> {pids}; wait"
    began = time.monotonic()
    assert run_client(["sh", "-c", wrapper], 0.5) is None
    assert time.monotonic() - began < 30.0
    for pid in map(int, pids.read_text().split()):
        while _lives(pid):  # a killed process ends in its own time
            assert time.monotonic() - began < 50.0
            time.sleep(0.01)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_what_is_no_text_is_shown_as_far_as_it_is() -> None:
    argv = [sys.executable, "-c", r"import sys; sys.stdout.buffer.write(b'n\xff1')"]
    assert run_client(argv, 5.0) == "n\N{REPLACEMENT CHARACTER}1"


def test_a_users_variables_change_neither_what_is_printed_nor_which_jobs() -> None:
    own = {"SQUEUE_STATES": "RUNNING", "SQUEUE_FORMAT": "%i", "SACCT_FORMAT": "jobid", "SLURM_TIME_FORMAT": "relative"}
    kept = {"SLURM_CONF": "/etc/slurm.conf", "SLURM_CLUSTERS": "big", "PATH": "/bin"}
    assert client_environment(own | kept) == kept | {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
    assert "PATH" in client_environment(os.environ)
