"""The H100's figures are judged as committed, and constants come from kernels alone, each by its own shape."""

import statistics
from dataclasses import replace

import pytest

from benchmarks.gpu_campaign.measured import Kernel, read
from benchmarks.gpu_campaign.times_judged import (
    FOLDER,
    OUT,
    Work,
    alone,
    classes_s,
    kernels,
    passes_s,
    product_errors,
    product_rates,
    products,
    shipped,
    shipped_for,
    text,
    traced_s,
)
from zerobench.timing.kernels import gemm_s

LARGE = ("llama-7b", "llama-13")
"""Models whose passes do not wait for the host."""


def test_the_committed_tables_are_those_of_the_committed_figures() -> None:
    assert OUT.read_text(encoding="utf-8") == text()


def test_products_that_a_gpu_of_known_rates_ran_tell_these_rates() -> None:
    device = shipped()
    device = replace(device, rates=device.rates.model_copy(update={"gemm_share": 0.7, "gemm_half_length": 125}))
    ran = tuple(
        replace(each, seconds=gemm_s(device, *each.product)) for each in kernels() if each.kind.startswith("product")
    )
    assert product_rates(ran) == (0.7, 125)


def test_products_of_every_size_take_what_an_h100_took() -> None:
    rates = shipped().rates
    off = sorted(map(abs, product_errors(products(kernels()), rates.gemm_share, rates.gemm_half_length)))
    assert statistics.median(off) < 0.05
    assert off[round(0.9 * len(off))] < 0.2


@pytest.mark.parametrize(
    ("kind", "product"), [("forward", (64, 512, 256)), ("by input", (64, 256, 512)), ("by weight", (512, 256, 64))]
)
def test_a_linear_layers_passes_have_products_of_their_own(kind: str, product: tuple[int, int, int]) -> None:
    assert Kernel(f"product {kind}", "64x512x256", 1.0, 1.0, 0.0).product == product


def test_classes_add_up_to_the_passes() -> None:
    work = Work.of_key("llama-7b-passes-mb4-s2048-ckpt")
    device = replace(alone(work, kernels()), host=None)
    assert sum(classes_s(work, device).values()) == pytest.approx(passes_s(work, device), rel=0.001)


@pytest.mark.parametrize(
    ("key", "busy_s"), [("llama-7b-passes-mb4-s2048-ckpt", 0.9385), ("llama-1b-torch-mb1-s2048", 0.05377)]
)
def test_a_profiles_classes_add_up_to_the_time_that_its_timeline_is_busy(key: str, busy_s: float) -> None:
    assert sum(traced_s(key).values()) == pytest.approx(busy_s, rel=0.005)


@pytest.mark.parametrize("row", [row for row in read(FOLDER / "steps.csv") if row["key"][:8] in LARGE])
def test_an_h100s_large_passes_lie_between_its_kernels_by_themselves_and_those_of_other_programs(
    row: dict[str, str],
) -> None:
    """Bytes are counted, attention and loss timed alone; products and eager kernels are of the profile of the first."""
    work = Work.of_key(row["key"])
    measured_s, as_shipped = float(row["forward_s"]) + float(row["backward_s"]), shipped_for(work)
    by_themselves = replace(as_shipped, rates=as_shipped.rates.model_copy(update={"in_programs": 1.0}))
    least_s, most_s = passes_s(work, by_themselves), passes_s(work, as_shipped)
    assert least_s < measured_s < most_s
    assert [least_s, most_s] == pytest.approx([measured_s, measured_s], rel=0.06)
