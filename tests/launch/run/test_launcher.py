"""What starts a trial: command lines against golden files, and the environment that its processes get."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from zerobench.common.environments import PACKAGES, VARIABLE, environment
from zerobench.common.errors import UserError
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.launch.run.executor import LocalExecutor
from zerobench.launch.run.launcher import (
    MARK,
    command_text,
    deepspeed_argv,
    deepspeed_program,
    environment_argv,
    free_port,
    launch_environment,
    launched_processes,
    read_hosts,
    remote_environment_text,
    visible_devices,
)
from zerobench.records.folder import TrialFolder

ENVIRONMENT_GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", list(PACKAGES))
def test_the_command_is_the_golden_one(name, monkeypatch):
    monkeypatch.setattr("sys.executable", "/venv/bin/python")
    argv = environment_argv(Path(f"/environments/{name}/bin/python"), name, TrialFolder(Path("/runs/trials/one")))
    assert command_text(argv, {}) == (ENVIRONMENT_GOLDEN / f"environment_{name}.txt").read_text()


def test_a_trial_gets_its_environments_python_zerobench_and_nothing_of_our_packages(tmp_path, make_trial, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    own = environment("horovod")
    own.python.parent.mkdir(parents=True)
    own.python.touch()
    own.made.write_text("{}")
    launch = LocalExecutor(num_cpus=4, num_gpus=0).launch(make_trial(strategy="horovod"), TrialFolder(tmp_path))
    assert launch.argv[0] == str(own.python)
    assert launch.added["PYTHONPATH"] == str(own.code())
    assert launch.added["MASTER_ADDR"] == "127.0.0.1"
    assert launch.added["OMP_NUM_THREADS"] == "2"


def test_one_that_is_gone_since_the_plan_was_made_is_refused_with_the_remedy(tmp_path, make_trial, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(UserError, match=r"not set up in .*; run: zerobench setup horovod"):
        LocalExecutor(num_cpus=4, num_gpus=0).launch(make_trial(strategy="horovod"), TrialFolder(tmp_path))


GOLDEN = Path(__file__).parent / "golden"
FOLDER = TrialFolder(Path("/runs/stages_20250101-120000/trials/standin-zero2-n4"))
MakeTrial = Callable[..., TrialSpec]


def written(trial: TrialSpec, *, num_gpus: int, hostfile: Path | None = None, devices: list[int] | None = None) -> str:
    """cmd.txt of `trial` on a machine of 16 cores."""
    argv = deepspeed_argv(trial, FOLDER, 29501, hostfile, devices=devices, program=["/venv/bin/deepspeed"])
    return command_text(argv, launch_environment(trial, FOLDER, num_cpus=16, num_gpus=num_gpus))


@pytest.mark.parametrize(
    ("golden", "fields", "options"),
    [
        ("one_cpu_node.txt", {"gpus_per_node": 2}, {"num_gpus": 0}),
        ("one_gpu_node.txt", {"gpus_per_node": 4, "strategy": "zero2"}, {"num_gpus": 8}),
        ("chosen_devices.txt", {"gpus_per_node": 2, "strategy": "zero3"}, {"num_gpus": 8, "devices": [2, 5]}),
        ("two_nodes.txt", {"num_nodes": 2, "gpus_per_node": 4}, {"num_gpus": 4, "hostfile": Path("/etc/nodes")}),
        ("solo.txt", {"num_nodes": 8, "gpus_per_node": 8, "evidence": Evidence.SOLO}, {"num_gpus": 1}),
    ],
)
def test_the_command_of_a_trial_is_the_golden_one(
    make_trial: MakeTrial, golden: str, fields: dict[str, object], options: dict[str, object]
) -> None:
    text = written(make_trial(**fields), **options)  # type: ignore[arg-type] # a table of keyword arguments
    assert text == (GOLDEN / golden).read_text()


def test_the_written_command_runs_again_by_hand(tmp_path: Path) -> None:
    script = "import os, sys; print(os.environ['A_NAME'], sys.argv[1:])"
    argv = ["python3", "-c", script, "two words", "--flag"]
    (tmp_path / "cmd.txt").write_text(command_text(argv, {"A_NAME": "a value"}))
    again = subprocess.run(
        ["xargs", "-d", "\n", "-a", str(tmp_path / "cmd.txt"), "env"], check=True, capture_output=True, text=True
    )
    assert again.stdout == "a value ['two words', '--flag']\n"


def test_the_launcher_is_the_one_of_this_environment() -> None:
    shown = subprocess.run([*deepspeed_program(), "--help"], check=True, capture_output=True, text=True)
    assert "--enable_each_rank_log" in shown.stdout


def test_a_trial_on_gpus_is_left_to_choose_its_own_accelerator_and_network(make_trial: MakeTrial) -> None:
    added = launch_environment(make_trial(), FOLDER, num_cpus=16, num_gpus=2)
    assert {"DS_ACCELERATOR", "GLOO_SOCKET_IFNAME"}.isdisjoint(added)
    assert added[MARK] == str(FOLDER.path)


def test_ranks_share_the_cores_of_their_node_and_get_one_at_least(make_trial: MakeTrial) -> None:
    def threads(**fields: object) -> str:
        return launch_environment(make_trial(**fields), FOLDER, num_cpus=8, num_gpus=0)["OMP_NUM_THREADS"]

    assert threads(gpus_per_node=2) == "4"
    assert threads(num_nodes=4, gpus_per_node=2) == "4"
    assert threads(gpus_per_node=64) == "1"
    assert threads(gpus_per_node=2, threads_per_rank=1) == "1", "as the sweep says"
    assert threads(gpus_per_node=4, evidence=Evidence.SOLO) == "2", "alone, with what it would have beside the others"


def test_one_process_stands_for_all_ranks_of_a_trial_that_is_not_measured(make_trial: MakeTrial) -> None:
    assert launched_processes(make_trial(gpus_per_node=8)) == 8
    assert launched_processes(make_trial(gpus_per_node=8, evidence=Evidence.SOLO)) == 1


def test_devices_are_the_first_of_those_that_the_user_allows(make_trial: MakeTrial) -> None:
    trial = make_trial(gpus_per_node=2)
    assert visible_devices(trial, {"CUDA_VISIBLE_DEVICES": "3, 1,0"}) == [3, 1]
    assert visible_devices(trial, {}) is None


@pytest.mark.parametrize("value", ["0", "GPU-8e1a,GPU-77b2", "0,one"])
def test_devices_that_will_not_do_are_refused_in_one_line(make_trial: MakeTrial, value: str) -> None:
    with pytest.raises(UserError, match=r"^CUDA_VISIBLE_DEVICES: .*$"):
        visible_devices(make_trial(gpus_per_node=2), {"CUDA_VISIBLE_DEVICES": value})


def test_a_free_port_can_be_listened_on() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as server:
        assert server.getsockname()[1] > 1024


def test_hosts_are_read_in_order_without_comments(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("# ours\nnode-b slots=4\n\n  node-a   slots=8\n")
    assert read_hosts(tmp_path / "nodes") == ["node-b", "node-a"]


@pytest.mark.parametrize("text", ["", "# none\n", "node-a\n", "node-a slots=many\n", "node-a 4\n"])
def test_a_hostfile_of_another_form_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "nodes").write_text(text)
    with pytest.raises(UserError, match=r"^--hostfile: .*slots=N"):
        read_hosts(tmp_path / "nodes")


@pytest.mark.parametrize("host", ["-oProxyCommand=touch${IFS}x", "--help", "n1;reboot", "$(reboot)", "n1,n2"])
def test_a_host_that_a_shell_or_ssh_would_take_for_something_else_is_refused(tmp_path: Path, host: str) -> None:
    (tmp_path / "nodes").write_text(f"n1 slots=2\n{host} slots=2\n")
    with pytest.raises(UserError, match=rf"^--hostfile: .*: '{re.escape(host)}' is not a host name or address"):
        read_hosts(tmp_path / "nodes")


@pytest.mark.parametrize("host", ["n1", "node-07.cluster.example", "10.0.0.7", "fe80::1%eth0", "me@n1", "n_1"])
def test_names_and_addresses_of_every_kind_are_hosts(tmp_path: Path, host: str) -> None:
    (tmp_path / "nodes").write_text(f"{host} slots=2\n")
    assert read_hosts(tmp_path / "nodes") == [host]


def test_a_missing_hostfile_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_hosts(tmp_path / "nowhere")


def test_remote_ranks_get_the_users_own_variables_and_then_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "..")
    (tmp_path / ".deepspeed_env").write_text("NCCL_SOCKET_IFNAME=ib0\n\nOMP_NUM_THREADS=1\n")
    text = remote_environment_text({"OMP_NUM_THREADS": "4"}, {})
    assert text == "NCCL_SOCKET_IFNAME=ib0\nOMP_NUM_THREADS=1\nOMP_NUM_THREADS=4\n"


@pytest.mark.parametrize(("value", "gpus", "nodes", "expected"), [
    ("0,1", 2, 1, [0, 1]),
    ("5", 1, 1, [5]),
    ("3,1,0", 2, 1, [3, 1]),
    ("", 2, 1, None),
    ("0", 2, 2, None),
])  # fmt: skip
def test_as_many_devices_as_a_trial_needs_are_enough(
    make_trial: MakeTrial, value: str, gpus: int, nodes: int, expected: list[int] | None
) -> None:
    """On several nodes the variable is this one's alone."""
    trial = make_trial(gpus_per_node=gpus, num_nodes=nodes)
    assert visible_devices(trial, {"CUDA_VISIBLE_DEVICES": value}) == expected


def test_one_device_is_enough_for_a_rank_that_is_alone(make_trial: MakeTrial) -> None:
    assert visible_devices(make_trial(gpus_per_node=8, evidence="solo"), {"CUDA_VISIBLE_DEVICES": "6,7"}) == [6]


@pytest.mark.parametrize(
    ("cpus", "gpus", "nodes", "threads"), [(16, 4, 1, "4"), (16, 4, 2, "4"), (3, 4, 1, "1"), (9, 4, 1, "2")]
)
def test_ranks_share_the_cores_of_their_own_node(
    make_trial: MakeTrial, cpus: int, gpus: int, nodes: int, threads: str
) -> None:
    added = launch_environment(make_trial(gpus_per_node=gpus, num_nodes=nodes), FOLDER, num_cpus=cpus, num_gpus=gpus)
    assert added["OMP_NUM_THREADS"] == threads
    asked = make_trial(gpus_per_node=gpus, num_nodes=nodes, threads_per_rank=7)
    assert launch_environment(asked, FOLDER, num_cpus=cpus, num_gpus=gpus)["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize(("num_gpus", "nodes", "names"), [
    (1, 1, {"ZEROBENCH_NEEDS_GPU"}), (0, 1, {"DS_ACCELERATOR", "GLOO_SOCKET_IFNAME"}), (0, 2, {"DS_ACCELERATOR"}),
])  # fmt: skip
def test_ranks_are_told_whether_they_have_a_gpu_and_on_one_node_of_cpus_stay_on_loopback(
    make_trial: MakeTrial, num_gpus: int, nodes: int, names: set[str]
) -> None:
    added = launch_environment(make_trial(gpus_per_node=2, num_nodes=nodes), FOLDER, num_cpus=2, num_gpus=num_gpus)
    of_device = {"ZEROBENCH_NEEDS_GPU", "DS_ACCELERATOR", "GLOO_SOCKET_IFNAME"}
    assert set(added) & of_device == names
