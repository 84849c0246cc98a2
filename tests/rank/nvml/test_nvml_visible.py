"""A trial's sampler watches the devices of CUDA_VISIBLE_DEVICES, in every spelling."""

import pytest

from zerobench.rank.nvml.nvml import DeviceInfo, DeviceListing
from zerobench.rank.nvml.nvml_visible import choose_visible

FIRST, SECOND = "MIG-aaaaaaaa-0000-0000-0000-000000000000", "MIG-bbbbbbbb-0000-0000-0000-000000000000"


def gpu(index: int, *mig_uuids: str, name: str = "NVIDIA H100") -> DeviceInfo:
    return DeviceInfo(index, f"GPU-{index}abc-def", name, 80 * 2**30, None, mig_uuids)


FOUR = [gpu(i) for i in range(4)]
UUIDS = [device.uuid for device in FOUR]
SPLIT = [gpu(0, FIRST, SECOND), gpu(1)]
PARTS = [FIRST, SECOND, "GPU-1abc-def"]


def sampled(devices: list[DeviceInfo], value: str | None, faults: tuple[str, ...] = (), **environ: str) -> list[str]:
    variables = environ if value is None else environ | {"CUDA_VISIBLE_DEVICES": value}
    choice = choose_visible(DeviceListing(devices, faults=list(faults)), variables)
    everything = [uuid for device in devices for uuid in device.mig_uuids or (device.uuid,)]
    assert sorted(choice.sampled + choice.not_sampled) == sorted(everything)
    assert choice.sampled == [uuid for uuid in everything if uuid in choice.sampled]
    return choice.sampled


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        ("0", [0]),
        ("2, 1", [1, 2]),
        ("0,1,2,3", [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,9,1", [0]),
        ("3,4,0", [3]),
        ("1,1,2", [1]),
        ("GPU-2abc-def", [2]),
        ("GPU-2,0", [0, 2]),
        ("GPU-9,1", []),
    ],
)
def test_the_devices_that_cuda_would_show_are_sampled_up_to_the_first_name_that_is_none(
    value: str, indices: list[int]
) -> None:
    assert sampled(FOUR, value) == [UUIDS[i] for i in indices]


def test_without_the_variable_all_are_sampled_mig_devices_in_place_of_their_gpu() -> None:
    assert sampled(FOUR, None) == UUIDS
    assert sampled(SPLIT, None) == PARTS


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (FIRST, [FIRST]),
        (f"{SECOND},{FIRST}", [FIRST, SECOND]),
        ("MIG-bbbb", [SECOND]),
        ("GPU-1abc-def", ["GPU-1abc-def"]),
        ("GPU-0", [FIRST, SECOND]),
        (f"{SECOND},GPU-1", [SECOND, "GPU-1abc-def"]),
        ("MIG-cccc", []),
    ],
)
def test_mig_devices_are_chosen_by_uuid_and_a_split_gpu_by_its_own_means_all_of_them(
    value: str, parts: list[str]
) -> None:
    assert sampled(SPLIT, value) == parts


def test_the_name_that_old_drivers_give_a_mig_device_is_taken_where_they_list_it() -> None:
    old = [gpu(0, "MIG-GPU-0abc-def/1/0", "MIG-GPU-0abc-def/5/0")]
    assert sampled(old, "MIG-GPU-0abc-def/5/0") == ["MIG-GPU-0abc-def/5/0"]
    assert sampled(SPLIT, "MIG-GPU-0abc-def/1/0") == PARTS


def test_where_an_index_may_mean_another_device_all_are_sampled() -> None:
    unlike = [gpu(0), gpu(1, name="NVIDIA T4")]
    everything = ["GPU-0abc-def", "GPU-1abc-def"]
    assert sampled(unlike, "0") == everything
    assert sampled(unlike, "0", CUDA_DEVICE_ORDER="PCI_BUS_ID") == everything[:1]
    assert sampled(unlike, "GPU-1") == everything[1:]
    assert sampled(FOUR[1:], "0", faults=("GPU 0: GPU is lost",)) == UUIDS[1:]
    assert sampled(SPLIT, "0") == PARTS
