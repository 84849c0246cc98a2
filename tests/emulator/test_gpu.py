"""An emulated GPU tells a program of its multiprocessors what the CUDA programming guide says of their generation."""

import pytest

from zerobench.common.errors import UserError
from zerobench.config.hardware.hardware import known_gpu
from zerobench.config.hardware.overheads import overhead_of
from zerobench.emulator.gpu import BOUNDLESS, EmulatedGpu


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


@pytest.mark.parametrize(
    ("name", "clock_mhz", "memory_clock_mhz"),
    [("A100 SXM 80GB", 1410, 1593), ("A100 SXM 40GB", 1410, 1215), ("H100 SXM", 1980, 2619)],
)
def test_clocks_are_those_that_nvidia_smi_shows_as_the_highest(
    name: str, clock_mhz: int, memory_clock_mhz: int
) -> None:
    """Of GPUs whose memory has a bus of 5,120 bits: two words of it a cycle, as two operations of each core."""
    gpu = EmulatedGpu.build(known_gpu(name))
    assert gpu.clock_khz == pytest.approx(1000 * clock_mhz, rel=0.003)
    assert gpu.memory_clock_khz == pytest.approx(1000 * memory_clock_mhz, rel=0.003)
    assert gpu.bus_width == 5120


def test_it_has_what_cuda_hands_out_and_nvml_counts_more() -> None:
    gpu = EmulatedGpu.build(known_gpu("H100 SXM"))
    assert (gpu.name, gpu.compute_capability) == ("NVIDIA H100 80GB HBM3", (9, 0))
    assert (gpu.memory_bytes, gpu.nvml_bytes) == (81082 * 2**20, 81559 * 2**20)
    assert (gpu.sm_count, gpu.l2_bytes) == (132, 50 * 2**20)


def test_on_a_boundless_one_everything_fits_by_cuda_and_by_nvml_and_all_else_stays() -> None:
    gpu = EmulatedGpu.build(known_gpu("H100 SXM"))
    boundless = gpu.boundless
    assert (boundless.memory_bytes, boundless.nvml_bytes) == (BOUNDLESS, BOUNDLESS) == (64 * 2**40, 64 * 2**40)
    own = {"memory_bytes": gpu.memory_bytes, "nvml_bytes": gpu.nvml_bytes}
    assert {**vars(boundless), **own} == vars(gpu)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8, 16, 100, 1024, 5000])
def test_nccl_takes_what_the_catalogue_says_of_as_many_ranks(ranks: int) -> None:
    """The stand-in takes the last step that begins at no more ranks (c/nccl.c)."""
    steps = EmulatedGpu.build(known_gpu("H100 SXM")).nccl_bytes
    assert [begins for begins, *_ in steps] == sorted({begins for begins, *_ in steps})
    first, another = next(sizes for begins, *sizes in reversed(steps) if begins <= ranks)
    overhead = overhead_of("H100 SXM", ranks)
    assert (first, another) == (overhead.collectives_bytes, overhead.another_bytes)


def test_the_variable_has_each_fact_once_as_the_stand_ins_read_them() -> None:
    gpu = EmulatedGpu.build(known_gpu("H100 SXM"))
    facts = dict(fact.split("=") for fact in gpu.variable(4).split(";"))
    assert (facts["major"], facts["minor"], facts["gpus"], facts["name"]) == ("9", "0", "4", gpu.name)
    plain = set(vars(gpu)) - {"compute_capability", "nccl_bytes", "name"}
    assert {name: facts[name] for name in plain} == {name: str(getattr(gpu, name)) for name in plain}
    assert [tuple(map(int, step.split(":"))) for step in facts["nccl"].split(",")] == list(gpu.nccl_bytes)


@pytest.mark.parametrize("name", ["a;b", "a=b"])
def test_a_name_that_the_variable_could_not_hold_is_refused(name: str) -> None:
    gpu = EmulatedGpu.build(known_gpu("H100 SXM").model_copy(update={"names": (name,)}))
    with pytest.raises(UserError, match="a name with ; or = cannot be emulated"):
        gpu.variable(1)


@pytest.mark.parametrize(("changed", "said"), [
    ({"compute_capability": None}, "cannot be emulated: the hardware catalogue gives it no compute_capability"),
    ({"compute_capability": "6.1"}, "compute_capability 6.1 is not known; choices: 7.0, 7.5"),
    ({"sm_count": None}, "cannot be emulated: the hardware catalogue gives it no sm_count"),
    ({"memory_bytes": None, "usable_memory_bytes": None}, "gives it no memory_bytes"),
])  # fmt: skip
def test_a_gpu_of_which_a_fact_is_missing_is_refused_by_its_name(changed: dict[str, None], said: str) -> None:
    with pytest.raises(UserError, match=r"^gpu: H100 SXM: ") as refused:
        EmulatedGpu.build(known_gpu("H100 SXM").model_copy(update=changed))
    assert said in str(refused.value)
