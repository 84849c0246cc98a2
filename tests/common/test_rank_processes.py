"""Ranks started on one machine: who each is, where it prints, and that they end together."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from zerobench.common.rank_processes import rank_environment, run_ranks

RANK = """
import os, signal, sys, time
what = dict(zip("01", sys.argv[1:]))[os.environ["RANK"]]
print(os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"], what)
if what == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if what == "waits":
    time.sleep(60)
sys.exit(3 if what == "fails" else 0)
"""


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs two ranks, each told what to do: the exit status, and the folder of their logs."""
    (tmp_path / "a_rank.py").write_text(RANK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(*acts: str) -> tuple[int, Path]:
        environments = [rank_environment(rank, 2) for rank in range(2)]
        return run_ranks("a_rank", acts, environments, tmp_path / "logs"), tmp_path / "logs"

    return run


def test_every_rank_knows_who_it_is_and_prints_to_a_log_of_its_own(ranks):
    code, logs = ranks("ends", "ends")
    assert code == 0
    assert [(logs / f"rank{rank}.log").read_text() for rank in range(2)] == ["0 0 2 ends\n", "1 1 2 ends\n"]


@pytest.mark.parametrize(("act", "code"), [("fails", 3), ("killed", 256 - 9)])
def test_where_one_rank_fails_the_others_are_ended_and_its_status_is_told(ranks, monkeypatch, act, code):
    monkeypatch.setattr("zerobench.common.rank_processes._LAST_WORDS_S", 0.3)
    start = time.monotonic()
    assert ranks("waits", act)[0] == code
    assert time.monotonic() - start < 30
