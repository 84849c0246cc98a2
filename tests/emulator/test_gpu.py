"""An emulated GPU tells a program of its multiprocessors what the CUDA programming guide says of their generation."""

import pytest

from zerobench.config.hardware.gpu_names import known_gpu
from zerobench.emulator.gpu import EmulatedGpu


@pytest.mark.parametrize(
    ("name", "threads", "blocks", "shared_kib", "shared_per_block_kib"),
    [
        ("V100 SXM2 32GB", 2048, 32, 96, 96),
        ("T4", 1024, 16, 64, 64),
        ("A100 SXM 80GB", 2048, 32, 164, 163),
        ("A10", 1536, 16, 100, 99),
        ("L4", 1536, 24, 100, 99),
        ("H100 SXM", 2048, 32, 228, 227),
        ("B200 SXM", 2048, 32, 228, 227),
    ],
)
def test_a_multiprocessor_holds_as_much_as_the_guide_gives_for_its_compute_capability(
    name: str, threads: int, blocks: int, shared_kib: int, shared_per_block_kib: int
) -> None:
    gpu = EmulatedGpu.build(known_gpu(name))
    assert (gpu.threads_per_sm, gpu.blocks_per_sm) == (threads, blocks)
    assert (gpu.shared_per_sm, gpu.shared_per_block) == (shared_kib * 1024, shared_per_block_kib * 1024)
