"""DeepSpeed's accelerator for the simulated GPU answers as one for a GPU does."""

from typing import Any

GPU = "simgpu"


class Gpu:
    """A GPU of 1000 bytes in a node of four, which notes what it is told."""

    capacity_bytes = 1000
    devices_per_node = 4

    def __init__(self) -> None:
        self.allocated = 0
        self.emptied = 0
        self.locked: list[int] = []

    def allocated_bytes(self) -> int:
        return self.allocated

    def empty_cache(self) -> None:
        self.emptied += 1

    def pinned(self, tensor: Any) -> None:
        self.locked.append(tensor.untyped_storage().nbytes())


def ask() -> dict[str, Any]:
    """DeepSpeed's queries of its device, with their results."""
    import torch
    from deepspeed.accelerator import get_accelerator

    from zerobench.rank.worlds import simulation
    from zerobench.rank.worlds.simulation.tensors import SimulatedTensors

    gpu = Gpu()
    simulation.use_gpu(gpu, lambda _flops, _is_backward: None)
    accelerator = get_accelerator()
    gpu.allocated = 300
    with SimulatedTensors(lambda _flops: None):
        made = {
            name: str(getattr(accelerator, name)([1, 2]).dtype) + " " + getattr(accelerator, name)([1]).device.type
            for name in ("FloatTensor", "HalfTensor", "BFloat16Tensor", "ByteTensor", "IntTensor", "LongTensor")
        }
        on_device, on_host = torch.empty(4, device=accelerator.current_device_name()), torch.empty(4)
        seen = {
            "on": [accelerator.on_accelerator(on_device), accelerator.on_accelerator(on_host)],
            "same_device": on_device.device == accelerator.device(),
        }
    accelerator.empty_cache()
    return seen | {
        "name": accelerator.device_name(),
        "synchronous": accelerator.is_synchronized_device(),
        "count": accelerator.device_count(),
        "total": accelerator.total_memory(),
        "available": accelerator.available_memory(),
        "allocated": accelerator.memory_allocated(),
        "emptied": gpu.emptied,
        "made": made,
        "types": [accelerator.is_bf16_supported(), accelerator.is_fp16_supported()],
    }


def test_deepspeed_learns_of_a_gpu_that_is_not_the_host(in_fork):
    seen = in_fork(ask)
    assert seen["on"] == [True, False]
    assert seen["same_device"] is True
    assert seen["name"] == GPU
    assert seen["synchronous"] is False
    assert seen["count"] == 4
    assert seen["types"] == [True, True]


def test_what_is_available_is_what_torch_has_not_taken(in_fork):
    seen = in_fork(ask)
    assert (seen["total"], seen["allocated"], seen["available"]) == (1000, 300, 700)
    assert seen["emptied"] == 1


def test_typed_constructors_make_tensors_on_the_device(in_fork):
    assert in_fork(ask)["made"] == {
        "FloatTensor": "torch.float32 simgpu",
        "HalfTensor": "torch.float16 simgpu",
        "BFloat16Tensor": "torch.bfloat16 simgpu",
        "ByteTensor": "torch.uint8 simgpu",
        "IntTensor": "torch.int32 simgpu",
        "LongTensor": "torch.int64 simgpu",
    }


def lock_pages() -> dict[str, Any]:
    """DeepSpeed's ways to page-locked memory."""
    import torch
    from deepspeed.accelerator import get_accelerator

    from zerobench.rank.worlds import simulation
    from zerobench.rank.worlds.simulation.tensors import SimulatedTensors

    gpu = Gpu()
    simulation.use_gpu(gpu, lambda _flops, _is_backward: None)
    accelerator = get_accelerator()
    with SimulatedTensors(lambda _flops: None):
        plain = torch.empty(30)
        copy = accelerator.pin_memory(plain)
        fresh = accelerator.pin_memory(torch.empty(7, dtype=torch.bfloat16, device=GPU), make_copy=False)
        empty = accelerator.pin_empty(3, 5, dtype=torch.float32)
        pinned = [accelerator.is_pinned(t) for t in (plain, copy, copy[3:], fresh, empty)]
        where = [t.device.type for t in (copy, fresh, empty)]
        apart = copy.untyped_storage()._cdata != plain.untyped_storage()._cdata
        del copy, fresh, empty
        later = [torch.empty(30) for _ in range(200)]  # some at the addresses of those that are gone
        return {
            "pinned": pinned,
            "where": where,
            "apart": apart,
            "locked": gpu.locked,
            "later": any(accelerator.is_pinned(t) for t in later),
        }


def test_page_locked_memory_is_known_and_told_and_lies_on_the_host(in_fork):
    seen = in_fork(lock_pages)
    assert seen["pinned"] == [False, True, True, True, True]
    assert seen["where"] == ["cpu"] * 3
    assert seen["apart"] is True
    assert seen["locked"] == [120, 14, 60]


def test_a_later_tensor_is_not_taken_for_one_that_was_page_locked(in_fork):
    assert in_fork(lock_pages)["later"] is False


def make_streams() -> list[Any]:
    """Streams and events as the engine uses them."""
    import torch
    from deepspeed.accelerator import get_accelerator

    from zerobench.rank.worlds import simulation
    from zerobench.rank.worlds.simulation.tensors import SimulatedTensors

    simulation.use_gpu(Gpu(), lambda _flops, _is_backward: None)
    accelerator = get_accelerator()
    with SimulatedTensors(lambda _flops: None):
        side, event = accelerator.Stream(), accelerator.Event()
        with accelerator.stream(side):
            tensor = torch.empty(3, device=GPU)
            tensor.record_stream(accelerator.current_stream())
        side.wait_stream(accelerator.current_stream())
        side.wait_event(event)
        event.record()
        side.synchronize()
        accelerator.synchronize()
        return [side.query(), event.query(), event.elapsed_time(accelerator.Event())]


def test_streams_are_always_done(in_fork):
    assert in_fork(make_streams) == [True, True, 0.0]


def make_tensors_of_data() -> dict[str, Any]:
    """torch.tensor on the device and on the host, where it keeps its value."""
    import torch

    from zerobench.rank.worlds.simulation.tensors import SimulatedTensors

    with SimulatedTensors(lambda _flops: None):
        with torch.device(GPU):
            default = torch.tensor([4, 5])
        host, device = torch.tensor([1, 2, 3]), torch.tensor([1.0, 2.0], device=f"{GPU}:0", dtype=torch.float16)
        return {
            "host": [host.device.type, str(host.dtype), list(host.shape)],
            "device": [device.device.type, str(device.dtype), list(device.shape)],
            "default": [default.device.type, str(default.dtype), list(default.shape)],
            "value": torch.tensor(4.0).item(),
        }


def test_a_tensor_made_of_data_lies_where_it_was_asked_to(in_fork):
    assert in_fork(make_tensors_of_data) == {
        "host": ["cpu", "torch.int64", [3]],
        "device": [GPU, "torch.float16", [2]],
        "default": [GPU, "torch.int64", [2]],
        "value": 4.0,
    }


def assign() -> dict[str, Any]:
    """A module cast as engines do, its buffers moved, and a parameter given other data."""
    import torch

    from zerobench.rank.worlds import simulation
    from zerobench.rank.worlds.simulation.tensors import SimulatedTensors

    simulation.use_gpu(Gpu(), lambda _flops, _is_backward: None)
    with SimulatedTensors(lambda _flops: None):
        with torch.device(GPU):
            module = torch.nn.BatchNorm1d(4)
        module.register_buffer("table", torch.empty(4))
        weight = module.weight
        module.to(GPU).to(torch.bfloat16)
        seen = {
            "same": module.weight is weight,
            "devices": sorted({t.device.type for t in (*module.parameters(), *module.buffers())}),
            "dtypes": sorted({str(t.dtype) for t in (*module.parameters(), *module.buffers())}),
        }
        weight.data = torch.empty(0, dtype=torch.float32, device=GPU)
        return seen | {"after": [str(weight.dtype), list(weight.shape), weight.untyped_storage().nbytes()]}


def test_modules_are_cast_in_place_and_parameters_can_be_emptied(in_fork):
    assert in_fork(assign) == {
        "same": True,
        "devices": [GPU],
        "dtypes": ["torch.bfloat16", "torch.int64"],
        "after": ["torch.float32", [0], 0],
    }
