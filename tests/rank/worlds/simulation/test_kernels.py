"""DeepSpeed's own classes around kernels that are not there: their states and their swaps are the real ones."""

import csv
from pathlib import Path
from typing import Any

import pytest

from tests.tools.imports import ROOT
from zerobench.common import block_io

GPU = "simgpu"
WRITTEN = {  # as DeepSpeed lays its swap files out (swap_tensor/optimizer_utils.py, partitioned_param_swapper.py)
    "optimizer/rank0/0.tensor.swp": 3000,
    "optimizer/rank0/1.tensor.swp": 500,
    "optimizer/rank1/0.tensor.swp": 70,
    "zero_stage_3/bfloat16params/rank0/0_param.tensor.swp": 2000,
    "zero_stage_3/bfloat16params/rank10/0_param.tensor.swp": 11,
}


def swap(folder: str) -> dict[str, Any]:
    """Write and read through DeepSpeed's own handle; what its counters say, and what lies in the folder."""
    import torch
    from deepspeed.ops.op_builder import AsyncIOBuilder

    from zerobench.emulator.inside import kernels

    kernels.install()
    handle = AsyncIOBuilder().load().aio_handle(1024, 8, False, False, 1)
    seen: dict[str, Any] = {"before": kernels.read_block_io()}
    for name, nbytes in WRITTEN.items():
        buffer = torch.empty(nbytes, dtype=torch.uint8)
        assert handle.async_pwrite(buffer, f"{folder}/{name}", 0) == 0
    seen["waited"] = handle.wait()
    seen["waited_again"] = handle.wait()
    first = next(iter(WRITTEN))
    handle.sync_pwrite(torch.empty(1000, dtype=torch.uint8), f"{folder}/{first}", 0)  # a file that is there already
    seen["written"] = kernels.read_block_io()
    handle.async_pread(torch.empty(300, dtype=torch.bfloat16), f"{folder}/{first}", 0)
    handle.sync_pread(torch.empty(7, dtype=torch.float32), f"{folder}/{first}", 0)
    seen["read"] = kernels.read_block_io()
    seen["files"] = {rank: kernels.swap_file_bytes(Path(folder), rank) for rank in (0, 1, 10, 2)}
    seen["elsewhere"] = kernels.swap_file_bytes(Path(folder + "-other"), 0)
    return seen


@pytest.fixture(scope="module")
def swapped(in_fork, tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvme")
    return folder, in_fork(swap, str(folder))


def test_the_io_handle_counts_what_it_is_given_to_write_and_to_read(swapped):
    _, seen = swapped
    assert seen["before"] == block_io.BlockIo(0, 0)
    assert seen["written"] == block_io.BlockIo(0, sum(WRITTEN.values()) + 1000)
    assert seen["read"] == block_io.BlockIo(600 + 28, sum(WRITTEN.values()) + 1000)


def test_waiting_tells_how_many_operations_were_under_way(swapped):
    _, seen = swapped
    assert (seen["waited"], seen["waited_again"]) == (len(WRITTEN), 0)


def test_no_file_is_written(swapped):
    folder, _ = swapped
    assert list(folder.iterdir()) == []


def test_swap_files_are_split_as_the_real_ones_on_a_disk_are(swapped, tmp_path):
    _, seen = swapped
    for name, nbytes in WRITTEN.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(nbytes))
    assert seen["files"] == {rank: block_io.swap_file_bytes(tmp_path, rank) for rank in (0, 1, 10, 2)}
    assert seen["files"][0] == {"optimizer": 3500, "parameters": 2000}
    assert seen["elsewhere"] == {"optimizer": 0, "parameters": 0}


def lock_pages() -> dict[str, Any]:
    """Page-locked buffers of the handle."""
    import torch
    from deepspeed.ops.op_builder import AsyncIOBuilder

    from zerobench.emulator.inside import kernels
    from zerobench.rank.worlds.simulation.tensors import SimulatedTensors

    kernels.install()
    handle = AsyncIOBuilder().load().aio_handle(1024, 8, False, False, 1)
    with SimulatedTensors(lambda _flops: None):
        buffer = handle.new_cpu_locked_tensor(1000, torch.empty(0, dtype=torch.bfloat16))
        seen = {
            "bytes": buffer.untyped_storage().nbytes(),
            "device": str(buffer.device),
            "locked": handle.is_pinned(buffer),
            "a view of it": handle.is_pinned(buffer[10:20]),
            "another": handle.is_pinned(torch.empty(1000, dtype=torch.bfloat16)),
        }
        handle.free_cpu_locked_tensor(buffer)
        return seen | {"freed": handle.is_pinned(buffer)}


def test_the_handles_buffers_are_locked_host_memory_until_they_are_freed(in_fork):
    assert in_fork(lock_pages) == {
        "bytes": 2000,
        "device": "cpu",
        "locked": True,
        "a view of it": True,
        "another": False,
        "freed": False,
    }


def take_steps(name: str) -> dict[str, Any]:
    """Two steps of one of DeepSpeed's optimizers; births and deaths of storages in each."""
    import torch
    from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam

    from zerobench.emulator.inside import kernels
    from zerobench.rank.worlds.simulation.allocator import SimulatedCounter
    from zerobench.rank.worlds.simulation.tensors import SimulatedTensors

    kernels.install()
    tensors = SimulatedTensors(lambda _flops: None)
    counter = SimulatedCounter(lambda: None, tensors)
    device = "cpu" if name == "cpu_adam" else GPU
    with tensors, counter:
        parameter = torch.nn.Parameter(torch.empty(1000, device=device))
        parameter.grad = torch.empty_like(parameter)
        optimizer = (DeepSpeedCPUAdam if name == "cpu_adam" else FusedAdam)([parameter])
        steps = []
        for _ in range(2):
            counter.start_phase()
            optimizer.step()
            steps.append([delta for _, delta in counter.events])
        state = {key: value.nbytes for key, value in optimizer.state[parameter].items() if torch.is_tensor(value)}
        return {"steps": steps, "state": state, "count": optimizer.state[parameter]["step"]}


@pytest.mark.parametrize("name", ["cpu_adam", "fused_adam"])
def test_deepspeeds_adam_keeps_two_moments_and_makes_nothing_else(in_fork, name):
    seen = in_fork(take_steps, name)
    assert seen["steps"] == [[4000, 4000], []]
    assert seen["state"] == {"exp_avg": 4000, "exp_avg_sq": 4000}
    assert seen["count"] == 2


def tell_adams_work(sizes: list[int]) -> list[Any]:
    """Device work reported for an update over tensors of the given sizes."""
    import torch
    from deepspeed.ops.adam import FusedAdam

    from zerobench.emulator.inside import kernels
    from zerobench.estimate.clock import trace
    from zerobench.rank.worlds.simulation.tensors import SimulatedTensors

    told: list[Any] = []
    kernels.install()
    trace.listen(told.append)
    with SimulatedTensors(lambda _flops: None):
        parameters = [torch.nn.Parameter(torch.empty(size, device=GPU)) for size in sizes]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        FusedAdam(parameters).step()
    return [tuple(item) for item in told]


def test_adams_kernel_moves_seven_values_a_parameter_in_as_many_launches_as_a_gpu_shows(in_fork):
    """A profiled step of a 1B on an H200; 36 tensors, or 320 chunks of 65,536 elements, are a launch."""
    with (ROOT / "benchmarks/gpu_campaign/h200/llama-1b-zero1-mb4-s2048.kernels.csv").open(encoding="utf-8") as file:
        [launches] = [int(row["count"]) for row in csv.DictReader(file) if "AdamFunctor" in row["name"]]
    assert in_fork(tell_adams_work, [1235814400]) == [(28 * 1235814400, launches)]
    assert in_fork(tell_adams_work, [1000] * 37) == [(28 * 37000, 2)]


def load_another() -> str:
    """A kernel that has no stand-in."""
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

    from zerobench.emulator.inside import kernels

    kernels.install()
    with pytest.raises(NotImplementedError) as error:
        ShareMemCommBuilder().load()
    return str(error.value)


def test_a_kernel_without_a_stand_in_is_refused_by_name(in_fork):
    message = in_fork(load_another)
    assert message.startswith("ShareMemCommBuilder: this compiled DeepSpeed kernel is not emulated; choices: ")
    assert "CPUAdamBuilder" in message


def quantize() -> dict[str, Any]:
    """Output of DeepSpeed's quantizer for 16,000 elements on two ranks: types, elements, scales."""
    import torch
    from deepspeed.ops import op_builder
    from deepspeed.runtime.zero.partition_parameters import CUDAQuantizer

    from zerobench.emulator.inside import kernels
    from zerobench.rank.worlds.simulation.tensors import SimulatedTensors

    kernels.install()
    module = op_builder.QuantizerBuilder().load()
    with SimulatedTensors(lambda _flops: None):
        values = torch.empty(16_000, dtype=torch.bfloat16)
        packed, scales = CUDAQuantizer().quantize(values)
        whole = CUDAQuantizer().dequantize(packed, scales)
        first_hop = module.swizzle_quant(values, 4, 4, module.Symmetric, 1, 2, 2)
        second_hop = module.quantized_reduction(*first_hop, 4, 2, 4, module.Symmetric, 2)
        again = module.dequantize(*second_hop, 2, 4, module.Symmetric)
        found = {"packed": packed, "scales": scales, "whole": whole, "hop 1": first_hop[0], "hop 2": second_hop[0]}
        found |= {"scales 1": first_hop[1], "scales 2": second_hop[1], "again": again}
        return {name: (str(tensor.dtype).removeprefix("torch."), tensor.numel()) for name, tensor in found.items()}


def test_quantized_tensors_have_the_types_and_sizes_of_the_compiled_kernels(in_fork):
    assert in_fork(quantize) == {
        "packed": ("int8", 16_000),
        "scales": ("float32", 2),  # blocks of 8,000
        "whole": ("float16", 16_000),
        "hop 1": ("int8", 8_000),  # two elements a byte
        "scales 1": ("float32", 4),
        "hop 2": ("int8", 4_000),  # reduced over two ranks
        "scales 2": ("float32", 2),
        "again": ("float16", 8_000),
    }
