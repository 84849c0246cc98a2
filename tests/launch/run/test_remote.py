"""Trials on two nodes through DeepSpeed's own multi-node path (pdsh), with a stand-in for ssh that logs in here."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.tools.known import known
from zerobench.common.vocabulary import Status
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run import remote
from zerobench.launch.run.attempt import run_trial
from zerobench.launch.run.executor import LocalExecutor
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.stop import Stop
from zerobench.records.folder import TrialFolder
from zerobench.records.records import RankRecord, TrialRecord

pytestmark = pytest.mark.skipif(shutil.which("pdsh") is None, reason="DeepSpeed's multi-node launcher needs pdsh")

CASES: dict[str, tuple[dict[int, str], dict[str, object]]] = {
    "completed": ({}, {}),
    "hang": ({0: "wait_for_a_peer_that_never_comes", 1: "ignore_sigterm"}, {"timeout_s": 30.0}),
    "crash": ({0: "wait_for_a_peer_that_never_comes", 1: "crash"}, {}),
}

Ended = dict[str, tuple[TrialFolder, TrialRecord]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nodes")


@pytest.fixture(scope="module")
def ended(
    runs: Path, make_trial: Callable[..., TrialSpec], put: Callable[[TrialSpec, Path], TrialFolder]
) -> Iterator[Ended]:
    (runs / "hostfile").write_text("node-a slots=1\nnode-b slots=1\nnode-c slots=1\n")
    executor = LocalExecutor(2, 0, runs / "hostfile", worker_module="standin_worker", settle_s=3.0)

    def one(name: str) -> tuple[TrialFolder, TrialRecord]:
        acts, fields = CASES[name]
        trial = make_trial(name, acts, num_nodes=2, gpus_per_node=1, **fields)
        folder = put(trial, runs)
        return folder, run_trial(trial, folder, "a_run", executor, Stop(), Observer())

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(3) as pool:
        patch.setattr(tempfile, "tempdir", str(runs))
        patch.setenv("PATH", f"{Path(__file__).with_name('bin')}{os.pathsep}{os.environ['PATH']}")
        yield dict(zip(CASES, pool.map(one, CASES), strict=True))


def test_a_trial_on_two_nodes_completes_with_our_environment_on_each(ended: Ended) -> None:
    folder, record = ended["completed"]
    assert record.status is Status.COMPLETED, record.failure
    ranks = [RankRecord.model_validate_json(folder.rank_record(rank).read_bytes()) for rank in (0, 1)]
    assert [(rank.local_rank, rank.world_size) for rank in ranks] == [(0, 2), (0, 2)]
    assert [rank.device_name for rank in ranks] == ["0", "0"]  # where the stand-in worker puts MALLOC_TOP_PAD_


def test_a_hang_on_two_nodes_is_a_timeout_with_the_stacks_of_both(ended: Ended) -> None:
    _, record = ended["hang"]
    assert record.status is Status.TIMEOUT
    assert record.failure is not None
    assert sorted(record.failure.stacks) == ["0", "1"]
    assert "in ignore_sigterm" in record.failure.stacks["1"]


def test_a_crash_on_one_node_ends_the_other_long_before_the_limit(ended: Ended) -> None:
    _, record = ended["crash"]
    assert record.status is Status.CRASH
    assert known(record.failure).rank == 1
    assert known(record.ended_at_s) - known(record.started_at_s) < 60


def test_no_process_is_left_on_any_node(
    ended: Ended, runs: Path, marked_processes: Callable[[Path], list[psutil.Process]]
) -> None:
    assert len(ended) == len(CASES)
    assert marked_processes(runs) == []


def test_the_file_that_carries_the_environment_is_gone_after_the_trial(ended: Ended, runs: Path) -> None:
    assert len(ended) == len(CASES)
    assert list(runs.glob("*.env")) == []


def test_a_node_that_does_not_answer_is_a_line_and_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ssh").write_text("#!/bin/sh\necho 'no route to host' >&2\nexit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert remote.apply_verb(["node-a"], "end", "a mark") == ["node-a: end: exit status 255: no route to host"]
