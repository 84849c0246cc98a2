"""Each node's environment lies in the run's folder under the scheduler's name for it, written once, whole."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from zerobench.common.errors import UserError
from zerobench.config.sweep.expand import PlannedTrial
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.executor import LocalExecutor
from zerobench.launch.run.node_environment import is_captured, main, node_file, record_hosts, record_node
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.runner import run_sweep
from zerobench.records.folder import RunFolder
from zerobench.records.store import latest_run, load_run

BIN = Path(__file__).with_name("bin")


def test_the_command_captures_this_node_under_its_name_and_imports_nothing_heavy(tmp_path: Path) -> None:
    folder = tmp_path / "nodes"
    code = "import sys; from zerobench.launch.run.node_environment import main; code = main(sys.argv[1:])\n"
    code += "sys.exit(code or ('torch' in sys.modules) * 3)"
    subprocess.run([sys.executable, "-c", code, str(folder), "gpu-7"], check=True)
    document = json.loads((folder / "gpu-7.json").read_bytes())
    assert (document["node"], document["hostname"]) == ("gpu-7", os.uname().nodename)
    assert document["machine"]["memory_bytes"] > 0
    assert "topology" in document
    assert [path.name for path in folder.iterdir()] == ["gpu-7.json"]


def test_a_node_that_is_there_is_not_captured_again(tmp_path: Path) -> None:
    path = node_file(tmp_path, "gpu-7")
    path.write_text('{"node": "gpu-7", "of": "the first job"}')
    assert record_node(tmp_path, "gpu-7") == path
    assert json.loads(path.read_bytes()) == {"node": "gpu-7", "of": "the first job"}


@pytest.mark.parametrize("name", ["", ".", "..", "../plan", "a/b", ".hidden", "a\nb", "a\x1b"])
def test_a_name_that_is_no_file_of_that_folder_is_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=r"NAME: .* is not a node name"):
        record_node(tmp_path, name)
    assert main([str(tmp_path), name]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_hosts_of_a_hostfile_capture_themselves_over_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(BIN), prepend=os.pathsep)
    record_hosts(tmp_path / "nodes", ["node-a", "node-b", "node-a"])
    found = {path.name: json.loads(path.read_bytes()) for path in (tmp_path / "nodes").iterdir()}
    assert sorted(found) == ["node-a.json", "node-b.json"]
    assert {document["node"] for document in found.values()} == {"node-a", "node-b"}
    assert all(document["versions"]["python"] for document in found.values())


def test_a_host_that_does_not_answer_says_why_and_is_asked_again_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho 'no route to host' >&2\nexit 255\n")
    ssh.chmod(0o755)
    folder = tmp_path / "nodes"
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        record_hosts(folder, ["node-a"])
    document = json.loads(node_file(folder, "node-a").read_bytes())
    assert document["fault"] == "node-a: environment: exit status 255: no route to host"
    assert not is_captured(node_file(folder, "node-a"))
    monkeypatch.setenv("PATH", str(BIN), prepend=os.pathsep)
    record_hosts(folder, ["node-a"])
    assert is_captured(node_file(folder, "node-a"))


def test_a_host_that_is_there_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node_file(tmp_path, "node-a").write_text('{"node": "node-a"}')
    monkeypatch.setenv("PATH", str(tmp_path / "no-ssh-here"))
    record_hosts(tmp_path, ["node-a"])
    assert is_captured(node_file(tmp_path, "node-a"))


class _BeginsNoTrial(Observer):
    """Ends the run when it is about to begin."""

    def run_started(self, run: RunFolder, to_do: int, kept: int, skipped: int) -> None:
        raise KeyboardInterrupt


def test_a_run_over_a_hostfile_records_the_nodes_that_it_needs_before_its_first_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_trial: Callable[..., TrialSpec]
) -> None:
    monkeypatch.setenv("PATH", str(BIN), prepend=os.pathsep)
    (tmp_path / "hostfile").write_text("node-a slots=1\nnode-b slots=1\nnode-c slots=1\n")
    here = make_trial("here", gpus_per_node=1)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(
            [PlannedTrial(trial=trial) for trial in (here, make_trial("two", num_nodes=2, gpus_per_node=1))],
            {"name": "nodes"},
            environment={"hostname": "login-1"},
            reports=tmp_path / "reports",
            executor=LocalExecutor(2, 0, tmp_path / "hostfile"),
            observer=_BeginsNoTrial(),
        )
    run = load_run(latest_run(tmp_path / "reports"))
    assert sorted(run.nodes) == ["node-a", "node-b"]
    assert run.environment == run.nodes["node-a"]
    assert run.submitted_from == {"hostname": "login-1"}


def test_a_run_on_this_machine_alone_records_no_nodes(tmp_path: Path, make_trial: Callable[..., TrialSpec]) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_sweep(
            [PlannedTrial(trial=make_trial("here", gpus_per_node=1))],
            {"name": "here"},
            environment={"hostname": "mine"},
            reports=tmp_path,
            executor=LocalExecutor(2, 0),
            observer=_BeginsNoTrial(),
        )
    run = load_run(latest_run(tmp_path))
    assert (run.nodes, run.environment, run.submitted_from) == ({}, {"hostname": "mine"}, None)
