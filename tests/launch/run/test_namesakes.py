"""Two nodes that share a hostname: what a rank of one does is never taken for what a rank of the other does."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tools.rank_records import progress
from zerobench.launch.run.ranks import RankWatch
from zerobench.rank.loop.launched import read_rank
from zerobench.records.folder import TrialFolder, write_whole
from zerobench.records.records import NvmlSummary


def report(folder: TrialFolder, rank: int, pid: int) -> None:
    write_whole(folder.progress(rank), progress(rank, pid=pid, hostname=socket.gethostname()).model_dump_json())


def test_a_process_that_has_the_id_of_another_nodes_rank_does_not_die_for_it(
    tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    """Containers on several nodes count their processes alike: rank 1 has the id that rank 0 has here."""
    folder = TrialFolder(tmp_path)
    command, environ = [sys.executable, "-c", "input()"], {**os.environ, "RANK": "0"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environ, start_new_session=True) as process:
        watch = RankWatch(folder, process.pid)
        report(folder, 1, process.pid)
        watch.look()
        report(folder, 0, process.pid)
        watch.look()
        process.kill()
        wait_until(lambda: watch.look() and watch.deaths)
        watch.close()
    assert list(watch.deaths) == [0]


@pytest.mark.parametrize(("ahead_s", "is_believed"), [(-30.0, False), (0.0, True), (3600.0, False)])
def test_an_exit_that_a_wrong_clock_dates_is_dated_by_when_it_was_seen(
    tmp_path: Path, ahead_s: float, *, is_believed: bool
) -> None:
    watch = RankWatch(TrialFolder(tmp_path), os.getpid())
    time.sleep(0.05)
    path = tmp_path / "exit_1.txt"
    path.write_text("137")
    said_s = time.time() + ahead_s
    os.utime(path, (said_s, said_s))
    time.sleep(0.05)
    seen_s = time.time()
    watch.look()
    assert watch.deaths[1].exit_code == -9
    dated_s = watch.deaths[1].at_s
    assert dated_s == pytest.approx(said_s, abs=1e-3) if is_believed else seen_s <= dated_s <= time.time()


@pytest.mark.parametrize(("rank", "ranks_per_node", "node"), [(0, 2, 0), (1, 2, 0), (2, 2, 1), (5, 2, 2), (7, 8, 0)])
def test_a_rank_of_a_measured_trial_knows_its_node_by_its_number(
    monkeypatch: pytest.MonkeyPatch, rank: int, ranks_per_node: int, node: int
) -> None:
    monkeypatch.setenv("RANK", str(rank))
    assert read_rank(ranks_per_node).node == node


def test_files_of_a_node_are_named_by_its_index_and_listed_in_its_order(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path)
    for node in (10, 2, 0):
        summary = NvmlSummary(hostname="same", node=node, available=False)
        folder.nvml_summary(node).write_text(summary.model_dump_json())
    assert [path.name for path in folder.nvml_summaries()] == ["nvml_node0.json", "nvml_node2.json", "nvml_node10.json"]
    assert folder.nvml_samples(2).name == "nvml_node2.csv"
    assert folder.host_samples(2).name == "host_node2.csv"
    assert folder.nvml_samples("an-old-host").name == "nvml_an-old-host.csv"


def test_two_processes_of_one_number_write_the_same_file_at_once_and_it_stays_whole(tmp_path: Path) -> None:
    """As on two nodes: process ids repeat there, and a folder is shared."""
    code = (
        "import os, sys; os.getpid = lambda: 4000\n"
        "from pathlib import Path; from zerobench.records.folder import write_whole\n"
        "for _ in range(60): write_whole(Path(sys.argv[1]), sys.argv[2] * 20000)\n"
    )
    path = tmp_path / "plan.json"
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), letter]) for letter in "ab"]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            seen.add(path.read_text())
    assert [writer.returncode for writer in writers] == [0, 0]
    assert {(len(text), len(set(text))) for text in seen} == {(20000, 1)}
    assert [one.name for one in tmp_path.iterdir()] == ["plan.json"]
