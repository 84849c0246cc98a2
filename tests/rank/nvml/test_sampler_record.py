"""The sampler's choice of devices, and its record with the reasons, independent of its pace."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.nvml_standin.standin import Standin, uuid
from tests.rank.nvml.test_sampler import GB, NODE, START, STOP, outcome, sample
from zerobench.common.errors import UserError
from zerobench.rank.nvml.sampler import Sampler, sampler_command
from zerobench.records.folder import TrialFolder
from zerobench.records.nvml_samples import read_samples
from zerobench.records.records import NvmlSummary

RESERVED = 549453824
MIG = """
    gpus 2
    mig 0 slot=0 gi=1 ci=0 uuid=MIG-aaaaaaaa-0000-0000-0000-000000000000 total=21474836480 name=H100_MIG_2g.20gb
    mig 0 slot=2 gi=5 ci=0 uuid=MIG-bbbbbbbb-0000-0000-0000-000000000000 total=42949672960 name=H100_MIG_3g.40gb
    mem 0/0 0:1073741824
    mem 1 0:7000
"""


def test_only_the_devices_that_the_trial_may_use_are_sampled_and_the_others_are_named(
    standin: Standin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    left = sample(standin, tmp_path, "gpus 4")
    assert [device.gpu_uuid for device in left.summary.devices] == [uuid(1), uuid(2)]
    assert {sample.gpu_uuid for sample in left.samples} == {uuid(1), uuid(2)}
    assert left.summary.not_sampled == [uuid(0), uuid(3)]
    assert (left.summary.reason, left.summary.faults) == (None, [])


def test_a_mig_device_named_to_cuda_is_sampled_alone(
    standin: Standin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (f"MIG-{digit * 8}-0000-0000-0000-000000000000" for digit in "ab")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", second)
    left = sample(standin, tmp_path, MIG)
    assert [device.gpu_uuid for device in left.summary.devices] == [second]
    assert left.summary.not_sampled == [first, uuid(1)]


def test_a_trial_that_may_use_no_device_has_none_sampled_and_the_record_says_why(
    standin: Standin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    left = sample(standin, tmp_path, "gpus 2")
    assert (left.summary.available, left.summary.devices) == (False, [])
    assert left.summary.reason == "CUDA_VISIBLE_DEVICES leaves no device to the trial: ''"
    assert left.summary.not_sampled == [uuid(0), uuid(1)]


def test_the_devices_asked_for_are_sampled_whatever_cuda_would_show(
    standin: Standin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    left = sample(standin, tmp_path, "gpus 2", uuid(1))
    assert [device.gpu_uuid for device in left.summary.devices] == [uuid(1)]


def test_mig_devices_are_sampled_in_place_of_their_gpu(standin: Standin, tmp_path: Path) -> None:
    left = sample(standin, tmp_path, "unprivileged 1\n" + MIG)
    first = "MIG-aaaaaaaa-0000-0000-0000-000000000000"
    assert [device.gpu_uuid[:4] for device in left.summary.devices] == ["MIG-", "MIG-", "GPU-"]
    assert [device.index for device in left.summary.devices] == [0, 0, 1]
    assert (left.device(first).peak_used_bytes, left.device(first).total_bytes) == (1073741824, 21474836480)
    assert left.device(first).energy_joules is None
    assert f"{first}: no power: the driver measures whole GPUs only" in left.summary.faults
    assert left.device(uuid(1)).energy_joules is not None


def test_an_old_driver_is_sampled_with_version_1_and_labelled(standin: Standin, tmp_path: Path) -> None:
    left = sample(standin, tmp_path, "gpus 1\nmem 0 0:1000000000", driver="old")
    assert left.summary.memory_api == "v1"
    assert (left.device(uuid(0)).peak_used_bytes, left.device(uuid(0)).reserved_bytes) == (GB + RESERVED, None)
    assert {sample.reserved_bytes for sample in left.samples} == {None}


@pytest.mark.parametrize(
    ("scenario", "driver", "reason"),
    [("", "broken", "libnvidia-ml.so.1 not found"), ("init_error 4", "new", "no permission")],
)
def test_without_a_driver_nothing_is_started_and_the_record_says_why(
    standin: Standin, tmp_path: Path, scenario: str, driver: str, reason: str
) -> None:
    code = "import psutil\nassert sampler.pid is None and not psutil.Process().children()\n"
    said = standin.run(START + code + STOP, scenario, driver, str(tmp_path), "0")
    left = outcome(tmp_path)
    assert left.summary == NvmlSummary.model_validate(said)
    assert (left.summary.available, left.samples) == (False, [])
    assert reason in (left.summary.reason or "")


def test_a_device_that_is_not_there_is_named_and_the_others_are_sampled(standin: Standin, tmp_path: Path) -> None:
    left = sample(standin, tmp_path, "gpus 2", "GPU-9", uuid(1), uuid(1).removeprefix("GPU-"))
    assert [device.gpu_uuid for device in left.summary.devices] == [uuid(1)]
    assert left.summary.reason == left.summary.faults[0] == "GPU-9: Not Found (nvmlDeviceGetHandleByUUID)"


def test_with_no_device_to_sample_the_process_ends_by_itself(standin: Standin, tmp_path: Path) -> None:
    code = "sampler._process.wait(10)\n"
    said = standin.run(START + code + STOP, "gpus 2", "new", str(tmp_path), "0", "GPU-9")
    assert (said["available"], said["reason"]) == (False, "GPU-9: Not Found (nvmlDeviceGetHandleByUUID)")


def test_a_sampler_that_cannot_be_started_says_why(standin: Standin, tmp_path: Path) -> None:
    code = "import sys; sys.executable = '/no/such/python'\n" + START.replace("assert ", "") + STOP
    said = standin.run(code, "gpus 1", "new", str(tmp_path), "0")
    assert (said["available"], outcome(tmp_path).summary.reason) == (False, said["reason"])
    assert "could not be started: [Errno 2] No such file or directory: '/no/such/python'" in said["reason"]


def test_a_sampler_that_cannot_write_says_so_in_the_record(standin: Standin, tmp_path: Path) -> None:
    code = """
import json, os, sys
from pathlib import Path
from zerobench.records.folder import TrialFolder
from zerobench.rank.nvml.sampler import Sampler
folder = TrialFolder(Path(sys.argv[1]))
sampler = Sampler.start(folder, 0, None)
folder.nvml_samples(0).mkdir()
sampler.wait_ready(20)
print(sampler.stop().model_dump_json())
"""
    said = standin.run(code, "gpus 1", "new", str(tmp_path))
    assert said["available"] is False
    assert "before its first reading: IsADirectoryError" in said["reason"]


def test_the_sampler_starts_without_anything_heavy() -> None:
    code = "import sys, zerobench.rank.nvml.sampler, zerobench.rank.nvml.sampler_process; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "deepspeed", "transformers", "numpy", "pandas", "rich", "psutil", "typer"}
    assert not heavy & set(done.stdout.split())


def test_an_interval_that_is_none_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^interval_s: 0; choices: a number of seconds above 0$"):
        Sampler.start(TrialFolder(tmp_path), NODE, None, interval_s=0)
    command = sampler_command(tmp_path / "a", tmp_path / "b", NODE, None, 0.01)
    interval = command.index("--interval-ms") + 1
    assert command[interval] == "10"
    command[interval] = "-3"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("argument --interval-ms: -3; choices: a number above 0")


def test_the_samplers_of_two_nodes_that_share_a_hostname_write_apart(standin: Standin, tmp_path: Path) -> None:
    code = START.replace("])), 0, ", "])), int(sys.argv[4]), ").replace("sys.argv[3:]", "sys.argv[3:4]") + STOP
    for node, used in ((0, 3 * GB), (1, 5 * GB)):
        standin.run(code, f"gpus 1\nmem 0 0:{used}", "new", str(tmp_path), "0", uuid(0), str(node))
    folder = TrialFolder(tmp_path)
    found = [NvmlSummary.model_validate_json(path.read_bytes()) for path in folder.nvml_summaries()]
    assert [(summary.node, summary.devices[0].peak_used_bytes) for summary in found] == [(0, 3 * GB), (1, 5 * GB)]
    assert len({summary.hostname for summary in found}) == 1
    assert {sample.used_bytes for sample in read_samples(folder.nvml_samples(0))} == {3 * GB}
    assert {sample.used_bytes for sample in read_samples(folder.nvml_samples(1))} == {5 * GB}
