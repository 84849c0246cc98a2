"""PEFT's adapters beside a Llama 7B on an H100, in fp32 and in 16 bits: memory to half a kilobyte, steps within 4 %.

No constant is of these steps: those of products in fp32 are of kernels timed alone.
"""

from functools import cache

import pytest

from benchmarks.gpu_campaign.measured import Kernel, read
from benchmarks.gpu_campaign.times_judged import SECOND, shipped
from benchmarks.prediction.simulated import gpu_trial
from tests.tools.kept_simulator import Simulate
from tests.tools.known import known
from zerobench.app.search.formula import formula_trial
from zerobench.common.vocabulary import Phase, Place, StepKind
from zerobench.config.hardware.hardware import find_gpu
from zerobench.config.hardware.links import links_of
from zerobench.config.trial.trial import Evidence, PredictionSpec, TrialSpec
from zerobench.estimate.clock.kernels import fp32_gemm_s
from zerobench.estimate.memory import formula_record
from zerobench.estimate.time.expected import published_step, timed_work
from zerobench.estimate.time.terms import update_seconds
from zerobench.records.instants import phase_peak

CELLS = {
    "lora-16-fp32:q_proj+k_proj+v_proj+o_proj": "llama-7b-lora-mb4-s2048-ckpt",
    "lora-16:q_proj+k_proj+v_proj+o_proj": "llama-7b-lora-bf16-mb4-s2048-ckpt",
}
"""By adapter, rows of steps.csv."""
IN_FP32, IN_16_BITS = CELLS
TRAINED = 32 * 4 * 2 * 16 * 4096
KILOBYTE, BLOCK = 1000, 512
THIN_S = 50e-6
"""Products that take less wait for the host in part."""


def asked(adapter: str) -> TrialSpec:
    axes = {"strategy": "single", "micro_batch_size": 4, "sequence_length": 2048, "adapter": adapter}
    place = {"prediction": PredictionSpec(gpu="H100 SXM"), "evidence": Evidence.FORMULA}
    return gpu_trial("llama-7b", 0, 1, **axes, **place)


def measured(adapter: str) -> dict[str, str]:
    [row] = [row for row in read(SECOND / "steps.csv") if row["key"] == CELLS[adapter]]
    return row


@cache
def step_s(adapter: str) -> float:
    gpu = known(find_gpu("H100 SXM"))
    work = known(timed_work(formula_trial(asked(adapter)), gpu, links_of(gpu)))
    return known(published_step(work)).step_s


MORE = {IN_FP32: 0, IN_16_BITS: 8 * TRAINED}
"""Bytes that a trial has more: beside adapters in 16 bits the loop keeps no master weights, and moments in 16 bits."""


@pytest.mark.parametrize("adapter", CELLS)
def test_a_simulated_rank_has_the_measured_bytes_but_one_block(simulate: Simulate, adapter: str) -> None:
    [rank] = simulate([asked(adapter).model_copy(update={"evidence": Evidence.SIMULATED})])
    steady = {row.phase: row for row in rank.device_memory if row.step is StepKind.STEADY}
    row = measured(adapter)
    peak = max(entry.peak_allocated_bytes for entry in steady.values())
    assert peak == int(row["peak_allocated"]) + MORE[adapter] + BLOCK


@pytest.mark.parametrize(("adapter", "more"), MORE.items())
def test_the_closed_form_has_the_measured_peak_and_what_stays(adapter: str, more: int) -> None:
    """But for the allocator's blocks of 512 bytes and the optimizer's counters of steps, which formulas leave out."""
    record, row = formula_record(asked(adapter), plays_allocator=False), measured(adapter)
    peaks = [
        known(phase_peak(record, StepKind.STEADY, phase, Place.DEVICE)) for phase in Phase if phase is not Phase.INIT
    ]
    assert max(peak.total_bytes for peak in peaks) == pytest.approx(
        int(row["peak_allocated"]) + more, abs=100 * KILOBYTE
    )
    kept = sum(
        entry.live_bytes
        for entry in record.memory
        if (entry.step, entry.phase, entry.place) == (StepKind.STEADY, Phase.STEP, Place.DEVICE)
        and entry.category.value != "total"
    )
    assert kept == pytest.approx(int(row["allocated"]) + more, abs=200 * KILOBYTE)


def test_an_update_in_fp32_reads_and_writes_what_adam_has_without_master_weights() -> None:
    gpu = known(find_gpu("H100 SXM"))
    work = known(timed_work(formula_trial(asked(IN_FP32)), gpu, links_of(gpu))).work
    on_device, _ = update_seconds(work)
    moved = 2 * 2 * 4 + 4 + 2 * 4  # both moments and the weights read and written, gradients read
    assert on_device * 1e9 * known(gpu.memory_gb_per_s) == pytest.approx(moved * TRAINED, rel=1e-6)


@pytest.mark.parametrize("adapter", CELLS)
def test_a_step_is_within_four_percent(adapter: str) -> None:
    assert step_s(adapter) == pytest.approx(float(measured(adapter)["step_s_median"]), rel=0.04)


def test_what_fp32_adds_to_a_step_is_within_a_tenth() -> None:
    expected = step_s(IN_FP32) - step_s(IN_16_BITS)
    took = [float(measured(adapter)["step_s_median"]) for adapter in CELLS]
    assert expected == pytest.approx(took[0] - took[1], rel=0.1)


def test_products_in_fp32_take_what_an_h100_took() -> None:
    timed = [
        Kernel(row["kind"], row["shape"], *(float(row[name]) for name in ("seconds", "flops", "moved_bytes")))
        for row in read(SECOND / "kernel_rates.csv")
        if row["kind"].startswith("adapter float32") and float(row["seconds"]) > THIN_S
    ]
    assert len(timed) == 14
    for kernel in timed:
        tokens, outputs, inputs = kernel.sizes
        sizes = (outputs, inputs, tokens) if kernel.kind.endswith("by weight") else (tokens, outputs, inputs)
        assert fp32_gemm_s(shipped(), *sizes) == pytest.approx(kernel.seconds, rel=0.15), kernel
