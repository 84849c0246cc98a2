"""Seconds of single kernels, by hand."""

import csv
import math
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.gpu_campaign.measured import read
from tests.tools.imports import ROOT
from tests.tools.known import known
from zerobench.config.hardware.hardware import find_gpu
from zerobench.config.models.presets import PRESETS, resolve_model
from zerobench.config.trial.trial import Precision
from zerobench.estimate.clock.device import Device, device_of
from zerobench.estimate.clock.host import QUEUED_LAUNCHES, block_issue
from zerobench.estimate.clock.kernels import attention_s, gemm_s, linear_s, moved_by_element_s, moved_s
from zerobench.estimate.clock.latency import latency_s
from zerobench.estimate.clock.rates import kind_rates
from zerobench.estimate.clock.replay import LATE_CLASS, UPDATE_CLASS, Span, Timeline
from zerobench.estimate.clock.step import TENTH, Sides, expected, replayed
from zerobench.estimate.time.passes import Passes, decoder_of, passes
from zerobench.estimate.time.step import Bucket, Phases, exposed_s, step
from zerobench.estimate.time.transformers_blocks import as_run

ONES = kind_rates("a100").model_copy(
    update={name: 1.0 for name in kind_rates("a100").model_dump() if name.endswith("share")} | {"gemm_half_length": 0.0}
)
DEVICE = Device(peak_flops=100 * 2.0**30, memory_bytes_per_s=2.0**30, sm_count=4, rates=ONES, assumptions={})


@pytest.mark.parametrize("missing", [{"peak_tflops": {}}, {"memory_gb_per_s": None}, {"sm_count": None}])
def test_a_datasheet_that_leaves_something_out_gives_no_device(missing: dict[str, Any]) -> None:
    assert device_of(known(find_gpu("h100")).model_copy(update=missing), Precision.BF16) is None


def test_a_device_has_its_datasheets_peaks() -> None:
    found = known(device_of(known(find_gpu("h100")), Precision.BF16))
    assert (found.peak_flops, found.fp32_flops, found.memory_bytes_per_s) == (989.5e12, 67e12, 3350e9)
    assert (found.sm_count, found.kind) == (132, "h100")
    assert device_of(known(find_gpu("h100")), Precision.FP32) is None


def test_a_product_that_fills_its_waves_runs_at_the_peak_and_one_tile_more_costs_a_wave() -> None:
    whole = gemm_s(DEVICE, 4 * 128, 256, 1024)
    assert whole == pytest.approx(2 * 4 * 128 * 256 * 1024 / DEVICE.peak_flops)
    assert gemm_s(DEVICE, 4 * 128 + 1, 256, 1024) == pytest.approx(2 * whole)


def test_a_short_inner_dimension_reaches_half_at_the_half_length() -> None:
    slow = DEVICE.rates.model_copy(update={"gemm_half_length": 1024.0})
    device = Device(DEVICE.peak_flops, DEVICE.memory_bytes_per_s, 4, slow, {})
    assert gemm_s(device, 512, 256, 1024) == pytest.approx(2 * gemm_s(DEVICE, 512, 256, 1024))


def test_a_product_of_few_tiles_divides_its_inner_dimension_among_idle_multiprocessors() -> None:
    endless = replace(DEVICE, memory_bytes_per_s=1e30)
    one_wave = gemm_s(endless, 4 * 128, 256, 4096)
    assert gemm_s(endless, 128, 256, 4096) == pytest.approx(one_wave / 4)
    assert gemm_s(endless, 2 * 128, 256, 4096) == pytest.approx(one_wave / 2)
    assert gemm_s(endless, 3 * 128, 256, 4096) == pytest.approx(one_wave)  # too many for a second part of each
    assert gemm_s(endless, 128, 256, 300) == pytest.approx(gemm_s(endless, 4 * 128, 256, 300))  # too short for parts
    real = replace(DEVICE, memory_bytes_per_s=2.0**33)
    sums_s = 4 * 128 * 256 * (4 + 4) / real.memory_bytes_per_s  # each of four written and read in fp32
    assert gemm_s(real, 128, 256, 4096) == pytest.approx(one_wave / 4 + sums_s)


def test_products_of_a_head_with_an_odd_vocabulary_take_what_an_h100_took() -> None:
    """Of a profiled step of GPT-2: forward, by input and by weight; a head of 50304 words takes a fourth."""
    profile = ROOT / "benchmarks/gpu_campaign/h100_third/gpt2-125m-torch-mb8-s1024.kernels.csv"
    with profile.open(encoding="utf-8") as file:
        took_s = [float(row["seconds"]) for row in csv.DictReader(file) if "align1" in row["name"]]
    assert len(took_s) == 3
    device, model = known(device_of(known(find_gpu("H100 SXM")), Precision.BF16)), resolve_model("gpt2-125m")
    run = as_run(device, model, known(decoder_of(model)), 1024, fuses=False, alone=True)
    assert sum(linear_s(run, 8192, 768, 50257)) == pytest.approx(sum(took_s), rel=0.02)
    assert sum(linear_s(run, 8192, 768, 50257)) > 4 * sum(linear_s(run, 8192, 768, 50304))
    assert run.unaligned_sizes == {50257}


@pytest.mark.parametrize("words", [50257, 50258, 50260, 50264, 50304])
def test_a_head_takes_what_an_h200_took_however_it_is_padded(words: int) -> None:
    """Three products timed alone, by whether rows begin at multiples of 2, 4, 8, 16 or 128 bytes."""
    rows = read(ROOT / "benchmarks/gpu_campaign/h200_second/kernel_rates.csv")
    took_s = sum(float(row["seconds"]) for row in rows if row["shape"] == f"8192x{words}x768")
    device, model = known(device_of(known(find_gpu("H200")), Precision.BF16)), resolve_model("gpt2-125m")
    model = model.model_copy(update={"hf_config": {**model.hf_config, "vocab_size": words}})
    run = as_run(device, model, known(decoder_of(model)), 1024, fuses=False, alone=True)
    assert sum(linear_s(run, 8192, 768, words)) == pytest.approx(took_s, rel=0.13)


def test_no_product_is_faster_than_its_operands_pass_through_memory() -> None:
    thin = gemm_s(DEVICE, 8192, 256, 1)
    assert thin == pytest.approx(2 * (8192 + 256 + 8192 * 256) / DEVICE.memory_bytes_per_s)


def test_backward_of_a_linear_layer_is_two_products() -> None:
    forward, backward = linear_s(DEVICE, 512, 1024, 1024)
    assert backward == pytest.approx(2 * forward)


def test_causal_attention_is_two_and_five_products_of_which_half_is_masked() -> None:
    forward, backward = attention_s(DEVICE, 2048, 2048, 4096)
    assert forward == pytest.approx(2 * 2048 * 2048 * 4096 / DEVICE.peak_flops)
    assert backward / forward == pytest.approx(2.5)


def test_elementwise_work_is_bytes_over_bandwidth() -> None:
    assert moved_s(DEVICE, 2.0**31) == pytest.approx(2.0)


def test_work_by_element_runs_no_faster_on_a_faster_memory() -> None:
    h100, h200 = (known(device_of(known(find_gpu(name)), Precision.BF16)) for name in ("H100 SXM", "H200 SXM"))
    assert (
        moved_by_element_s(h200, 1e12)
        == pytest.approx(moved_by_element_s(h100, 1e12))
        == pytest.approx(1 / 2.11, rel=0.01)
    )
    assert moved_s(h200, 1e12) < moved_s(h100, 1e12) < moved_by_element_s(h100, 1e12)
    slow = replace(h100, memory_bytes_per_s=1e12)
    assert moved_by_element_s(slow, 1e12) == moved_s(slow, 1e12)


def test_the_host_is_the_least_that_a_small_block_takes() -> None:
    gpu, decoder = known(find_gpu("a100-80gb")), known(decoder_of(resolve_model("gpt2-125m")))
    device = known(device_of(gpu, Precision.BF16))
    assert device.host is not None
    for engine in ("fsdp", "single", "zero3"):
        issue = block_issue(engine, is_gated=False)
        forward, backward, *_ = issue
        forward_s, backward_s = forward.seconds(device.host), backward.seconds(device.host)
        small = passes(decoder, device, 64, 64, runs_all=False, issue=issue)
        assert small.block_forward_s == forward_s
        assert small.block_backward_s == backward_s
        again = passes(decoder, device, 64, 64, recomputed=1.0, runs_all=False, issue=issue)
        assert again.block_backward_s == backward_s + forward_s
        assert passes(decoder, replace(device, host=None), 64, 64, issue=issue).block_forward_s < forward_s


def test_the_host_launches_backward_while_the_head_is_computed() -> None:
    gpu, decoder = known(find_gpu("a100-80gb")), known(decoder_of(resolve_model("gpt2-125m")))
    device = known(device_of(gpu, Precision.BF16))
    small = passes(decoder, device, 64, 64)
    assert small.head_s > 0
    assert device.host is not None
    forward, backward, *_ = block_issue("fsdp", is_gated=False)
    issued_s = decoder.layers * (forward.seconds(device.host) + backward.seconds(device.host))
    assert small.forward_s + small.backward_s == pytest.approx(issued_s)
    large = passes(decoder, device, 65536, 1024)
    assert large == passes(decoder, device, 65536, 1024, runs_all=False)


def test_what_checkpointing_launches_again_takes_its_place_in_the_queue() -> None:
    gpu, small = known(find_gpu("h100")), known(decoder_of(resolve_model("gpt2-125m")))
    device = known(device_of(gpu, Precision.BF16))
    decoder = replace(small, layers=48, vocabulary=10**7)  # its head is long enough to fill the queue
    issue = block_issue("zero1", is_gated=False)
    for again in (0.0, 1.0):
        found = passes(decoder, device, 128, 128, recomputed=again, issue=issue)
        launches = decoder.layers * (issue.backward.launches + again * issue.forward.launches)
        assert launches > QUEUED_LAUNCHES
        late_s = found.issued_s[1] * (1 - QUEUED_LAUNCHES / launches)
        assert found.block_backward_s == pytest.approx(late_s)


HALVES, LATE = (Bucket(0.5, 0.6), Bucket(1.0, 0.4)), (Bucket(0.9, 0.5), Bucket(1.0, 0.5))
COPIED = {"forward_s": 0.4, "backward_s": 0.7, "copied_s": (0.2, 0.3), "awaited_s": 0.1}
GATHERED = {"forward_s": 0.5, "backward_s": 1.0, "reduced_s": 0.5}
REDUCED = {"forward_s": 1.5, "backward_s": 1.5, "reduced_s": 1.0, "buckets": HALVES}


@pytest.mark.parametrize(
    ("moved", "forward_s", "backward_s"),
    [
        ({}, 0, 0),
        (
            {"forward_s": 0.1, "backward_s": 0.2},
            0.01,
            0.0,
        ),  # the host goes on; it slows none that wait for it
        ({"forward_s": 0.1, "backward_s": 0.2, "reduced_s": 0.2}, 0.01, 0.02),  # but for the last reduction
        (GATHERED, 0.05 + 0.5 * 0.35, 0.05 + 0.5 * 0.75),
        (GATHERED | {"forward_s": 0.05}, 0.005, 0.05 + 0.5 * (0.75 - 0.055)),  # 0.055 of the host's wait is left over
        ({"forward_s": 3.0}, 3 - 0.81 - 0.1 + 0.5 * (0.81 - 0.2), 0),
        ({"copied_s": (0.15, 0.5)}, 0.15 - 0.1, 0.5 - 0.2),
        (COPIED, 0.06 + 0.5 * (0.36 - 0.1), 0.1 + 0.09 + 0.5 * (0.54 - 0.2)),
        (REDUCED, 0.995, 0.4 + 0.05 + 0.5 * (0.45 + 0.6) - 0.2),  # the first bucket within the pass
        (REDUCED | {"reduces_apart": False}, 0.995, 0.8 + 0.05 + 0.5 * 0.45),  # as much as the host makes up for
        (REDUCED | {"reduces_apart": False, "reduced_s": 0.25}, 0.995, 0.1 + 0.125 + 0.5 * 1.125 - 0.05),
        (REDUCED | {"reduces_after": True}, 0.995, 0.25 + 0.6 + 0.4),
        (REDUCED | {"reduces_after": True, "buckets": LATE, "reduced_s": 0.5}, 0.995, -0.05 + 0.5 + 0.25),
    ],
)
def test_what_nothing_hides_is_reckoned_by_hand(moved: dict[str, Any], forward_s: float, backward_s: float) -> None:
    """Passes of 1 and 2 seconds, of which the device waits 0.1 and 0.2 for the host. Of what is hidden, nine tenths go
    on beside kernels, which it slows by half of its time.
    """
    computing = Passes(0.1, 0.2, 10, 0.0, 1 / 3, 0.01, 0.02, ahead_s=0.05, reducing_issued_s=0.5)
    rates = DEVICE.rates.model_copy(update={"contention": 0.5})
    found = exposed_s(computing, Phases(**moved), rates, overlaps=True)
    assert found == pytest.approx((forward_s, backward_s), abs=1e-12)


def test_in_a_replayed_step_what_ran_beside_kernels_slows_them() -> None:
    rates = DEVICE.rates.model_copy(update={"contention": 0.5, "step_s": 0.1, "micro_batch_s": 0.01})
    spans = Span("compute", "x", "forward", 0, 1), Span("communication", "all_gather", "forward", 0.5, 1.75)
    beside = Timeline(spans, {"products": 1.0, UPDATE_CLASS: 0.25, LATE_CLASS: 9.0}, 1.75, 2.0)
    assert replayed(beside, rates, 2) == pytest.approx((1.0, 0.75 + 0.5 * 0.5, 0.25 + 0.1 + 0.02))
    assert replayed(Timeline((), {"products": 1.0}, 2.0, 2.0), rates, 0) == pytest.approx((2.0, 0.0, 0.1))


def test_mlps_with_a_gate_have_three_matrices_and_a_mixture_of_experts_is_not_known() -> None:
    gated, plain = known(decoder_of(resolve_model("llama-8b"))), known(decoder_of(resolve_model("gpt2-125m")))
    assert (gated.mlp_matrices, plain.mlp_matrices) == (3, 2)
    assert (gated.mlp_width, plain.mlp_width) == (14336, 4 * 768)
    assert gated.qkv_width == 4096 + 2 * 1024
    assert decoder_of(resolve_model("mixtral-8x7b")) is None
    assert {
        name: known(decoder_of(resolve_model(name))).is_apart for name in ("phi3-mini", "gemma2-2b", "llama-8b")
    } == {
        "phi3-mini": False,
        "gemma2-2b": True,
        "llama-8b": True,
    }


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_decoder_whose_blocks_take_time_or_a_mixture(name: str) -> None:
    found = decoder_of(resolve_model(name))
    assert (found is None) == name.startswith("mixtral")


def test_a_third_of_the_head_is_forward() -> None:
    found = Passes(block_forward_s=0.1, block_backward_s=0.2, layers=10, head_s=0.3)
    assert (found.forward_s, found.backward_s) == pytest.approx((1.1, 2.2))


def test_hidden_communication_leaves_one_block_and_open_communication_all() -> None:
    gpu, decoder = known(find_gpu("a100-80gb")), known(decoder_of(resolve_model("llama-7b")))
    device = known(device_of(gpu, Precision.BF16))
    computing = passes(decoder, device, 4096, 2048)
    calm = device.rates.model_copy(update={"contention": 0.0, "jitter": 0.0, "step_s": 0.15, "micro_batch_s": 0.05})
    short = Phases(forward_s=0.032, backward_s=0.064, update_s=0.5)
    compute, hidden, update = step(computing, 2, short, 0.25, calm, ranks=8, overlaps=True)
    assert hidden == pytest.approx(2 * (0.032 + 0.064) / 32)
    assert update == pytest.approx(1.0)
    assert compute == pytest.approx(2 * (computing.forward_s + computing.backward_s))
    assert step(computing, 2, short, 0.0, calm, ranks=8, overlaps=False)[1] == pytest.approx(2 * 0.096)
    long = Phases(forward_s=10.0)
    blocks = computing.layers * computing.block_forward_s
    assert step(computing, 1, long, 0.0, calm, ranks=8, overlaps=True)[1] == pytest.approx(10 - blocks * 31 / 32)
    once = Phases(backward_s=0.064, rounds=1)
    found = step(computing, 4, once, 0.0, calm, ranks=8, overlaps=False)
    assert found[1:] == pytest.approx((0.064, 0.15 + 4 * 0.05))
    first = Phases(forward_s=0.032, first_forward_s=0.048)
    assert step(computing, 4, first, 0.0, calm, ranks=8, overlaps=False)[1] == pytest.approx(3 * 0.032 + 0.048)


def test_hidden_communication_slows_computing_and_all_wait_for_the_slowest_rank() -> None:
    computing = Passes(block_forward_s=0.1, block_backward_s=0.2, layers=10, head_s=0.0)
    rates = DEVICE.rates.model_copy(update={"contention": 0.5, "jitter": 0.01})
    compute, exposed, _ = step(computing, 1, Phases(forward_s=0.4), 0.0, rates, ranks=1, overlaps=True)
    assert exposed == pytest.approx(0.4 / 10 + 0.5 * 0.4 * 9 / 10)
    slower, _, _ = step(computing, 1, Phases(), 0.0, rates, ranks=100, overlaps=True)
    assert compute == pytest.approx(3.0)
    assert slower == pytest.approx(3.0 * (1 + 0.01 * math.log(100)))


def test_a_ring_passes_on_once_for_each_other_rank_and_a_tree_is_taken_where_it_is_shorter() -> None:
    assert latency_s("all_gather", 1, 1) == 0.0
    assert latency_s("all_gather", 8, 1) == pytest.approx(8.4e-6 + 7 * 3.4e-6)
    assert latency_s("reduce_scatter", 16, 2) == pytest.approx(8.4e-6 + 14 * 3.4e-6 + 14e-6)
    assert latency_s("all_reduce", 2, 1) == pytest.approx(8.4e-6 + 2 * 3.4e-6)
    assert latency_s("all_reduce", 512, 64) == pytest.approx(8.4e-6 + 2 * (7 * 4.0e-6 + 6 * 14e-6))
    assert latency_s("send", 2, 2) > latency_s("send", 2, 1) > 0


def test_an_interval_is_even_on_both_sides_and_grows_with_what_is_assumed() -> None:
    sure, unsure = expected((1.0, 0.5, 0.5), 0.05, {}), expected((1.0, 0.5, 0.5), 0.05, {"a guess": 0.3})
    assert sure.step_s == unsure.step_s == 2.0
    assert sure.step_s / sure.low_s == pytest.approx(sure.high_s / sure.step_s)
    assert unsure.low_s < sure.low_s < sure.high_s < unsure.high_s
    assert unsure.assumptions == ("a guess",)
    piped = expected((1.0, 0.5, 0.25, 0.125), 0.05, {})
    assert [*piped.parts.values()] == [1.0, 0.5, 0.125, 0.25]
    assert (piped.step_s, piped.bubble_s, piped.spread, len(sure.parts)) == (1.875, 0.125, 0.05, 3)


def test_spreads_add_up_as_independent_ones_each_side_of_an_interval_by_itself() -> None:
    found = expected((1.0, 0.5, 0.5), 0.4, {"both": 0.3, "above alone": Sides(0.0, 1.2)})
    assert found.low_s == pytest.approx(2.0 / math.exp(TENTH * 0.5))
    assert found.high_s == pytest.approx(2.0 * math.exp(TENTH * 1.3))
