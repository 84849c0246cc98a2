"""What `zerobench doctor` finds, and that it always ends."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.nvml_standin.standin import Standin
from zerobench.config.derived.availability import FRAMEWORKS
from zerobench.launch.setup import doctor
from zerobench.launch.setup.doctor import SHARED_MEMORY, Finding, Standing, can_run, run_checks, write_bytes_per_s

ALL = {*FRAMEWORKS, "GPUs", "torch for CUDA", "compilers", SHARED_MEMORY, "emulated GPU", "Slurm"}


def test_a_check_that_never_ends_is_a_finding_and_holds_up_no_other() -> None:
    never = threading.Event()

    def hangs() -> Iterator[Finding]:
        never.wait()
        yield from ()

    def fails() -> Iterator[Finding]:
        raise PermissionError(13, "not allowed")
        yield

    began_s = time.monotonic()
    found = run_checks({"driver": hangs, "disk": fails, "good": lambda: iter([Finding("a", Standing.GOOD, "b")])}, 0.2)
    assert time.monotonic() - began_s < 30
    never.set()
    assert [(one.what, one.standing.value) for one in found] == [
        ("driver", "missing"),
        ("disk", "limited"),
        ("a", "ok"),
    ]
    assert found[0].finding == "no answer within 0.2 s"


@pytest.mark.parametrize(
    ("lacking", "cannot"),
    [
        (set(), set()),
        ({"GPUs"}, {"measured on GPUs"}),
        ({"torch for CUDA"}, {"measured on GPUs"}),
        ({SHARED_MEMORY}, {"measured on CPU ranks"}),
        ({"emulated GPU", "Slurm"}, {"emulated", "submitted to Slurm"}),
        ({"torch"}, {"measured on GPUs", "measured on CPU ranks", "simulated", "emulated"}),
    ],
)
def test_what_can_run_follows_from_what_is_there(lacking: set[str], cannot: set[str]) -> None:
    standing = {True: Standing.MISSING, False: Standing.GOOD}
    kinds = can_run([Finding(name, standing[name in lacking], "") for name in ALL])
    assert {name for name, can in kinds.items() if not can} == cannot


def test_releases_that_were_not_tried_and_the_other_package_of_the_name_are_findings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    releases = {"torch": "2.15.0", "deepspeed": "0.19.8", "transformers": "4.57.6"}
    monkeypatch.setattr(doctor, "packages", lambda: releases)
    monkeypatch.setattr(doctor, "namesake", lambda: "0.5")
    found = {(one.what, one.standing): one for one in doctor._packages()}
    told = [one.finding for one in doctor._packages() if one.what == "versions"]
    assert [line.partition(" has not been tried")[0] for line in told] == ["torch 2.15.0", "transformers 4.57.6"]
    assert "uninstall zerobench" in found["namesake", Standing.LIMITED].remedy
    assert found["torch", Standing.GOOD].finding == "2.15.0"  # it is not refused


def test_a_lock_that_nobody_holds_is_told_of_and_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    lock = tmp_path / "cpu_adam" / "lock"
    lock.parent.mkdir()
    lock.touch()
    [found] = doctor._locks()
    assert str(lock) in found.finding
    assert lock.exists()


def test_a_folder_that_takes_no_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path) -> float:
        raise PermissionError(errno.EACCES, "Permission denied", str(folder / ".zerobench-1"))

    monkeypatch.setattr(doctor, "write_bytes_per_s", refuse)
    [disk] = doctor._disk(tmp_path / "runs")
    assert disk == Finding(
        "disk", Standing.MISSING, f"{tmp_path}: Permission denied", remedy="choose another --reports"
    )


def test_the_disk_is_tried_within_bounds_and_left_as_it_was(tmp_path: Path) -> None:
    assert write_bytes_per_s(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []


GPU_ROWS = """
    import json, os, sys
    from zerobench.launch.setup import doctor
    doctor.torch_cuda_version = lambda: sys.argv[1]
    if sys.argv[2:]:
        os.environ["CUDA_VISIBLE_DEVICES"] = sys.argv[2]
    print(json.dumps([[one.what, one.standing.value, one.finding, one.remedy] for one in doctor._gpus()]))
"""
BUSY = """
    gpus 5 name=NVIDIA_H200
    proc 0 4194000 0:8589934592
    mem 1 0:25769803776
    mem 2 0:536870912
    gpu 3 mig=1
    mig 3 slot=0 gi=1 ci=0 uuid=MIG-aaaaaaaa-0000-0000-0000-000000000000 total=21474836480 name=H200_MIG_2g.20gb
    err 4 * 15
"""


def test_gpus_are_told_with_their_driver_their_faults_and_who_holds_their_memory(standin: Standin) -> None:
    wait = "wait for it, or choose others with CUDA_VISIBLE_DEVICES"
    mend = "details: nvidia-smi -q; often a reset or a reboot helps"
    assert standin.run(GPU_ROWS, BUSY, "new", "12.8") == [
        ["GPUs", "ok", "4: NVIDIA H200; driver 550.163.01, CUDA 12.4; GPU 3 split into 1 by MIG", ""],
        ["GPU fault", "limited", "GPU 4: GPU is lost (nvmlDeviceGetHandleByIndex)", mend],
        ["GPU 0 in use", "limited", "process 4194000 (not visible here) holds 8.00 GiB", wait],
        ["GPU 1 in use", "limited", "24.00 GiB used by processes not visible here", wait],
    ]


@pytest.mark.parametrize(
    ("scenario", "driver", "given", "what", "words"),
    [
        ("gpus 2", "new", ("13.0",), "driver", "runs CUDA 12.4, and torch was built for 13.0"),
        ("gpus 2", "new", ("12.8", "-1"), "GPUs", "2 hidden by CUDA_VISIBLE_DEVICES=-1"),
        ("init_error 18", "new", ("12.8",), "GPUs", "differ in version"),
        ("", "broken", ("12.8",), "GPUs", "no NVIDIA driver: libnvidia-ml.so.1 not found"),
    ],
)
def test_a_machine_whose_gpus_torch_cannot_use_says_why(
    standin: Standin, scenario: str, driver: str, given: tuple[str, ...], what: str, words: str
) -> None:
    rows = standin.run(GPU_ROWS, scenario, driver, *given)
    [found] = [finding for name, standing, finding, remedy in rows if name == what and standing == "missing" and remedy]
    assert words in found
    findings = [Finding(name, Standing(standing), finding) for name, standing, finding, _ in rows]
    others = [Finding(name, Standing.GOOD, "") for name in ALL - {"GPUs"}]
    assert not can_run([*findings, *others])["measured on GPUs"]


@pytest.mark.parametrize(
    ("addresses", "standing", "words"),
    [
        ({"lo": ["127.0.0.1", "::1"]}, Standing.GOOD, "reached from this machine alone"),
        (
            {"lo": ["127.0.0.1"], "eth0": ["192.0.2.7", "fe80::1%eth0"]},
            Standing.LIMITED,
            "eth0 192.0.2.7, eth0 fe80::1",
        ),
    ],
)
def test_the_addresses_are_told_from_which_the_ranks_store_can_be_reached(
    monkeypatch: pytest.MonkeyPatch, addresses: dict[str, list[str]], standing: Standing, words: str
) -> None:
    def listed() -> dict[str, list[SimpleNamespace]]:
        families = {True: socket.AF_INET6, False: socket.AF_INET}
        return {
            name: [SimpleNamespace(family=families[":" in ip], address=ip) for ip in each]
            for name, each in addresses.items()
        }

    monkeypatch.setattr("psutil.net_if_addrs", listed)
    [found] = doctor._rendezvous()
    assert (found.what, found.standing) == ("rendezvous", standing)
    assert found.finding.endswith(words)
    assert bool(found.remedy) is (standing is Standing.LIMITED)
