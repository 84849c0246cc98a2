"""A rank's end is told by the exception that ended it, with the allocator's own figures where it gave some."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from zerobench.common.vocabulary import Category, Phase, Status
from zerobench.rank.ledger.device import Device
from zerobench.rank.ledger.failures import cpu_allocator_refusal, describe
from zerobench.rank.ledger.held import REFUSED
from zerobench.rank.ledger.recorder import Marks
from zerobench.records.records import HostStanding

CPU = Device(torch.device("cpu"), "cpu", None, "gloo")


def marks(phase: Phase = Phase.BACKWARD, step_index: int = 0) -> Marks:
    found = Marks()
    found.phase, found.step_index = phase, step_index
    return found


def refused_by_torch() -> RuntimeError:
    """Error of torch's CPU allocator for a request of four exabytes."""
    with pytest.raises(RuntimeError) as refusal:
        torch.empty(2**62, dtype=torch.uint8)
    return refusal.value


def test_torchs_own_refusal_of_host_memory_tells_the_bytes_that_were_asked():
    status, failure = describe(refused_by_torch(), marks(), 2, CPU)
    assert status is Status.OUT_OF_HOST_MEMORY
    assert (failure.bytes_asked, failure.bytes_free) == (2**62, None)
    assert failure.evidence == "the allocator's exception"
    assert failure.rank == 2


def test_a_refusal_is_known_by_its_type_and_words_together():
    words = str(refused_by_torch())
    assert cpu_allocator_refusal(ValueError(words)) is None
    assert cpu_allocator_refusal(NotImplementedError(words)) is None  # a RuntimeError of another kind
    assert cpu_allocator_refusal(RuntimeError("DefaultCPUAllocator: something else")) is None


def test_pythons_own_refusal_is_of_host_memory_without_figures():
    status, failure = describe(MemoryError(), marks(), 0, CPU)
    assert (status, failure.bytes_asked, failure.evidence) == (Status.OUT_OF_HOST_MEMORY, None, None)


@pytest.mark.parametrize("device", [None, CPU])
def test_a_device_that_is_full_tells_what_its_allocator_last_refused(device: Device | None):
    if device is not None:
        device = Device(device.torch_device, "gpu", None, "nccl", last_refusal={"bytes_asked": 70, "bytes_free": 5})
    status, failure = describe(torch.OutOfMemoryError("CUDA out of memory"), marks(), 1, device)
    assert status is Status.OUT_OF_DEVICE_MEMORY
    assert (failure.bytes_asked, failure.bytes_free) == ((None, None) if device is None else (70, 5))


def test_a_failure_says_the_phase_and_step_in_which_it_was():
    status, failure = describe(ValueError("first line\nsecond line"), marks(), 0, CPU)
    assert status is Status.CRASH
    assert (failure.phase, failure.step_index, failure.exception) == (Phase.BACKWARD, 0, "ValueError")
    assert failure.message == "ValueError in backward of step 1: first line"


def test_torchs_refusal_is_told_to_its_last_figure_and_without_its_advice():
    figures = (
        "CUDA out of memory. Tried to allocate 590.00 MiB. " + "f" * 250 + " is reserved by PyTorch but unallocated."
    )
    advice = " If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True"
    _, failure = describe(torch.OutOfMemoryError(figures + advice), marks(Phase.STEP, 1), 0, CPU)
    assert failure.message == f"OutOfMemoryError in the update of step 2: {figures}"


def test_a_failure_between_the_engines_calls_is_in_none_of_its_phases():
    _, failure = describe(ValueError("it"), marks(), 0, CPU, between_calls=True)
    assert failure.phase is None
    assert failure.message == "ValueError outside of the engine's calls, after backward of step 1: it"


def test_a_failure_at_start_up_is_in_no_step():
    _, failure = describe(ValueError(), Marks(), 0, CPU)
    assert (failure.message, failure.step_index) == ("ValueError in init: ", -1)


def test_a_traceback_keeps_its_end_and_no_secret(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrstuvwxyz")
    error = ValueError("hf_abcdefghijklmnopqrstuvwxyz\n" + "x" * 30_000 + " the end")
    _, failure = describe(error, marks(), 0, CPU)
    assert "hf_abc" not in failure.message
    assert failure.traceback is not None
    assert len(failure.traceback) == 20_000
    assert failure.traceback.rstrip().endswith("the end")


def accelerators(words: str, code: int) -> torch.AcceleratorError:
    """As torch raises it, with CUDA's code (torch/csrc/Exceptions.cpp)."""
    error = torch.AcceleratorError(words)
    vars(error)["error_code"] = code
    return error


HELD = HostStanding(at=REFUSED, by_category={Category.ACTIVATIONS: 7}, by_site={"a.py:forward": 7})


@pytest.mark.parametrize("error", [MemoryError(), refused_by_torch(), "pinning"])
def test_where_host_memory_is_refused_what_is_held_of_it_is_told(error: BaseException | str):
    if isinstance(error, str):
        error = accelerators("CUDA error: out of memory", 2)
    device = Device(CPU.torch_device, "cpu", None, "gloo", host_standing=lambda: HELD)
    status, failure = describe(error, marks(), 0, device)
    assert (status, failure.host_standing) == (Status.OUT_OF_HOST_MEMORY, HELD)
    assert describe(ValueError("x"), marks(), 0, device)[1].host_standing is None


TELLS_WITH_NO_ADDRESS_LEFT = """
import json, resource
import torch
from zerobench.rank.ledger.device import describe_device
from zerobench.rank.ledger.failures import describe
from zerobench.rank.ledger.recorder import Marks
from zerobench.records.records import HostStanding

def told():
    bytearray(24 << 20)
    return HostStanding(at="now", by_category={})

device = describe_device(torch.device("cpu"))
device.host_standing = told
device.watch_refusals()
held = []
resource.setrlimit(resource.RLIMIT_AS, (int(open("/proc/self/statm").read().split()[0]) * 4096,) * 2)
try:
    while True:
        held.append(bytearray(1 << 20))
except MemoryError as error:
    _, failure = describe(error, Marks(), 0, device)
print(json.dumps(failure.host_standing and failure.host_standing.at))
"""


def test_room_is_kept_to_tell_what_was_held_where_no_address_is_left():
    said = subprocess.run(
        [sys.executable, "-c", TELLS_WITH_NO_ADDRESS_LEFT], capture_output=True, text=True, check=True
    )
    assert json.loads(said.stdout) == "now", said.stderr


def test_an_accelerators_other_error_is_a_crash():
    error = accelerators("CUDA error: an illegal memory access was encountered", 700)
    assert describe(error, marks(), 0, CPU)[0] is Status.CRASH


def test_a_list_that_cannot_be_made_hides_no_refusal():
    def broken() -> HostStanding:
        raise KeyError("x")

    device = Device(CPU.torch_device, "cpu", None, "gloo", host_standing=broken)
    with pytest.warns(UserWarning, match="could not list what is allocated"):
        status, failure = describe(MemoryError(), marks(), 0, device)
    assert (status, failure.host_standing) == (Status.OUT_OF_HOST_MEMORY, None)
