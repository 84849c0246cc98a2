"""The GPU of the stand-ins: facts from the catalogue, and the variable that passes them on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from zerobench.common.errors import UserError
from zerobench.config.hardware.hardware import Gpu
from zerobench.config.hardware.overheads import overhead_of

VARIABLE = "ZEROBENCH_EMULATED_GPU"
"""Environment variable with the device's facts, read by the stand-ins (c/gpu.c)."""

BOUNDLESS = 1 << 46
"""Device memory (64 TiB) of a GPU on which everything fits, to count the total need of work."""

_NCCL_RANKS = (1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_BUS_WIDTH = 5120


@dataclass(frozen=True)
class _Architecture:
    """Limits of a compute capability, from the CUDA programming guide (technical specifications)."""

    shared_per_sm_kib: int
    threads_per_sm: int
    blocks_per_sm: int
    cores_per_sm: int


_ARCHITECTURES: Mapping[str, _Architecture] = {
    "7.0": _Architecture(96, 2048, 32, 64),
    "7.5": _Architecture(64, 1024, 16, 64),
    "8.0": _Architecture(164, 2048, 32, 64),
    "8.6": _Architecture(100, 1536, 16, 128),
    "8.9": _Architecture(100, 1536, 24, 128),
    "9.0": _Architecture(228, 2048, 32, 128),
    "10.0": _Architecture(228, 2048, 32, 128),
    "10.3": _Architecture(228, 2048, 32, 128),
    "12.0": _Architecture(100, 1536, 24, 128),
}


@dataclass(frozen=True)
class EmulatedGpu:
    """One model of GPU as CUDA describes it to a program, and its memory besides the program's tensors."""

    name: str
    """Name that the driver reports."""
    memory_bytes: int
    """Memory that CUDA can allocate."""
    nvml_bytes: int
    """Total reported by NVML."""
    sm_count: int
    compute_capability: tuple[int, int]
    l2_bytes: int
    shared_per_sm: int
    """Shared memory of a multiprocessor, bytes."""
    shared_per_block: int
    """Most of it that one block can request, bytes."""
    threads_per_sm: int
    blocks_per_sm: int
    clock_khz: int
    """Derived from the peak of fp32; 0 if unknown."""
    memory_clock_khz: int
    """Derived from the bandwidth, for a bus of `bus_width`."""
    bus_width: int
    context_bytes: int
    """CUDA context of a process (zerobench.config.hardware.overheads)."""
    nccl_bytes: tuple[tuple[int, int, int], ...]
    """Steps of (fewest ranks, NCCL bytes of a process's first communicator, of another)."""

    @classmethod
    def build(cls, gpu: Gpu) -> EmulatedGpu:
        """Emulated form of a catalogued GPU. Raises UserError: not by NVIDIA, or a required fact is unknown."""
        architecture = _ARCHITECTURES.get(gpu.compute_capability or "")
        if gpu.compute_capability and not architecture:
            known = ", ".join(_ARCHITECTURES)
            raise UserError(
                f"gpu: {gpu.name}: compute_capability {gpu.compute_capability} is not known; choices: {known}"
            )
        if not (architecture and gpu.compute_capability):
            raise UserError(
                f"gpu: {gpu.name}: cannot be emulated: the hardware catalogue gives it no compute_capability, which "
                "NVIDIA's GPUs have; zerobench plan --evidence simulated predicts others"
            )
        capacity_bytes = gpu.capacity_bytes
        if capacity_bytes is None or gpu.sm_count is None:
            facts = {"memory_bytes": capacity_bytes, "sm_count": gpu.sm_count}
            missing = " or ".join(name for name, value in facts.items() if value is None)
            raise UserError(f"gpu: {gpu.name}: cannot be emulated: the hardware catalogue gives it no {missing}")
        major, minor = map(int, gpu.compute_capability.split("."))
        fp32 = gpu.peak_tflops.get("fp32", 0.0)
        return cls(
            name=(gpu.names or (gpu.name,))[0],
            memory_bytes=capacity_bytes,
            nvml_bytes=gpu.memory_bytes or capacity_bytes,
            sm_count=gpu.sm_count,
            compute_capability=(major, minor),
            l2_bytes=gpu.l2_bytes or 0,
            shared_per_sm=architecture.shared_per_sm_kib << 10,
            # All of it on Volta and Turing; since Ampere the system reserves 1 KiB per block.
            shared_per_block=(architecture.shared_per_sm_kib - (major >= 8)) << 10,
            threads_per_sm=architecture.threads_per_sm,
            blocks_per_sm=architecture.blocks_per_sm,
            clock_khz=round(fp32 * 1e9 / (2 * gpu.sm_count * architecture.cores_per_sm)),
            memory_clock_khz=round((gpu.memory_gb_per_s or 0) * 8e6 / (2 * _BUS_WIDTH)),
            bus_width=_BUS_WIDTH,
            context_bytes=overhead_of(gpu.name, 1).context_bytes,
            nccl_bytes=_nccl_bytes(gpu.name),
        )

    @property
    def boundless(self) -> EmulatedGpu:
        """Copy with memory for everything."""
        return replace(self, memory_bytes=BOUNDLESS, nvml_bytes=BOUNDLESS)

    def variable(self, num_gpus: int) -> str:
        """Facts of a node with `num_gpus` of it, as the stand-ins read them. Raises UserError: a name with `;`."""
        if ";" in self.name or "=" in self.name:
            raise UserError(f"gpu: {self.name!r}: a name with ; or = cannot be emulated")
        facts = asdict(self)
        facts["major"], facts["minor"] = facts.pop("compute_capability")
        facts["nccl"] = ",".join(":".join(map(str, step)) for step in facts.pop("nccl_bytes"))
        return ";".join(f"{key}={value}" for key, value in {**facts, "gpus": num_gpus}.items())


def _nccl_bytes(name: str) -> tuple[tuple[int, int, int], ...]:
    steps: list[tuple[int, int, int]] = []
    for ranks in _NCCL_RANKS:
        overhead = overhead_of(name, ranks)
        sizes = overhead.collectives_bytes, overhead.another_bytes
        if not steps or steps[-1][1:] != sizes:
            steps.append((ranks, *sizes))
    return tuple(steps)
