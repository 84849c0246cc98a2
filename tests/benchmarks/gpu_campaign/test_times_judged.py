"""The H100's figures are judged as committed, and constants come from kernels alone, each by its own shape."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.gpu_campaign.measured import Kernel
from benchmarks.gpu_campaign.times_judged import (
    H200_FOLDERS,
    MACHINES,
    OUT,
    MeasuredPasses,
    Work,
    alone,
    by_formula_timed,
    classes_s,
    h200_by_others,
    h200_steps,
    h200_trials,
    kernels,
    later_steps,
    measured_passes,
    passes_s,
    product_errors,
    product_rates,
    products,
    shipped,
    shipped_for,
    sustained,
    text,
    traced_s,
    whole_steps,
)
from tests.tools.known import known
from zerobench.estimate.clock.kernels import gemm_s
from zerobench.estimate.time.expected import parts_of, published_step
from zerobench.report.figures.calibrated_time import TimedStep, fitted_steps

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


@pytest.mark.parametrize("step", [step for step in measured_passes() if step.name[:8] in LARGE], ids=str)
def test_large_passes_of_two_h100_take_what_is_expected_where_they_do_not_wait_for_the_host(
    step: MeasuredPasses,
) -> None:
    """Bytes are counted, attention and loss timed alone; products and eager kernels are of the profile of the first;
    how much longer programs of one rank take is what other programs say.
    """
    expected_s = passes_s(step.work, shipped_for(step.work))
    if step.waits_for_host:
        assert expected_s < 0.95 * step.seconds, "the shipped host launches faster"
    else:
        assert expected_s == pytest.approx(step.seconds, rel=0.045)


def test_gpt_2s_passes_with_its_odd_vocabulary_take_what_is_expected_on_three_h100() -> None:
    steps = [step for step in measured_passes() if step.name.startswith("gpt2")]
    assert [step.machine for step in steps] == list(MACHINES)
    for step in steps:
        assert passes_s(step.work, shipped_for(step.work)) == pytest.approx(step.seconds, rel=0.08)


def test_two_h100_take_equally_long_for_passes_that_do_not_wait_for_the_host() -> None:
    busy = [step for step in measured_passes() if step.name[:8] in LARGE and not step.waits_for_host]
    first, second = ({step.name: step for step in busy if step.machine == machine} for machine in ("first", "second"))
    both = first.keys() & second.keys()
    assert len(both) == 3
    for name in both:
        assert second[name].seconds == pytest.approx(first[name].seconds, rel=0.02), name


def test_steps_of_a_machine_calibrate_another_of_its_kind_and_its_own_to_5_percent_at_the_median() -> None:
    *rows, medians = later_steps("second")
    before, shipped, by_the_first, by_its_others = (float(cell.rstrip("%")) for cell in medians[2:])
    assert by_its_others < 4 < by_the_first < 5 < shipped < 6 < before
    on_the_host = [row for row in rows if "on the host" in row[0]]
    assert len(on_the_host) == 2
    for row in on_the_host:
        assert abs(float(row[3].rstrip("%"))) > 13
        assert abs(float(row[5].rstrip("%"))) < 4


def test_seventeen_steps_of_three_h100_are_as_near_as_the_pages_say() -> None:
    """Without the one trial that tells them, launches and Python of a host are what shipped: such four are far off."""
    first, later = whole_steps(by_formula_timed("first"))[:-1], [later_steps(name)[:-1] for name in ("second", "third")]
    by_shipped = [abs(float(row[2].rstrip("%"))) for row in first]
    by_shipped += [abs(float(row[3].rstrip("%"))) for rows in later for row in rows]
    calibrated = [abs(float(row[-1].rstrip("%"))) for row in (*first, *later[0], *later[1])]
    assert len(by_shipped) == 17
    assert statistics.median(by_shipped) < 8
    assert statistics.median(calibrated) < 4
    assert sorted(calibrated)[12] < 8
    steps = [step for machine in MACHINES for step in by_formula_timed(machine).values()]
    assert _inside(steps) == (14, 17)


@pytest.mark.parametrize("machine", MACHINES)
def test_one_set_of_constants_tells_every_step_of_a_machine(machine: str) -> None:
    steps = list(by_formula_timed(machine).values())
    said = fitted_steps(steps)
    off = [said.factor * sum(known(parts_of(step.asked.at(said.constants)))) / step.step_s - 1 for step in steps]
    assert max(map(abs, off)) < 0.06
    assert statistics.median(map(abs, off)) < 0.02


def test_steps_on_an_h200_are_in_their_intervals_and_near_where_they_do_not_wait_for_the_host() -> None:
    found = {key: (step, update_s) for key, step, update_s in h200_steps(H200_FOLDERS["first"])}
    assert _inside([step for step, _ in found.values()]) == (14, 16)
    for key, off in (("llama-1b-zero1-mb4-s2048", 0.02), ("llama-7b-zero1-mb1-s2048-ckpt", 0.1)):
        step, update_s = found[key]
        _, _, update, _ = known(parts_of(step.asked))
        assert sum(known(parts_of(step.asked))) == pytest.approx(step.step_s, rel=off)
        assert update == pytest.approx(update_s, rel=0.1)


def test_steps_on_a_second_h200_are_in_their_intervals_but_for_one_without_what_programs_do_between_steps() -> None:
    """For which 6 ms are expected; of GPT-2's 43 that is much."""
    plain = {key: step for key, step, _ in h200_steps(H200_FOLDERS["second"])}
    outside = [key for key, step in plain.items() if _inside([step]) == (0, 1)]
    assert (len(plain), outside) == (14, ["gpt2-125m-torch-mb8-s1024"])
    trials = {name: step for name, step, _ in h200_trials()}
    assert _inside(list(trials.values())) == (10, 10)


def test_trials_on_an_h200_are_five_percent_off_what_the_others_there_say() -> None:
    off = h200_by_others()
    assert len(off) == 5
    assert statistics.median(map(abs, off.values())) < 0.05


def test_updates_on_the_host_take_what_its_new_memory_and_pageable_copies_take() -> None:
    """Stage 3 casts its weights into new memory on the host, and FSDP's optimizer makes roots and quotients there: both
    both were expected in a third of what they took. Stage 1's update does neither: its host is a quarter slower.
    """
    offloaded = {name: (step, update_s) for name, step, update_s in h200_trials() if "on the host" in name}
    off = {
        name.split()[1]: known(parts_of(step.asked))[2] / update_s - 1 for name, (step, update_s) in offloaded.items()
    }
    assert off == {
        "zero1": pytest.approx(-0.23, abs=0.02),
        "zero3": pytest.approx(-0.01, abs=0.02),
        "fsdp": pytest.approx(-0.17, abs=0.02),
    }


def _inside(steps: Sequence[TimedStep]) -> tuple[int, int]:
    said = [known(published_step(step.asked)) for step in steps]
    inside = [each.low_s <= step.step_s <= each.high_s for each, step in zip(said, steps, strict=True)]
    return sum(inside), len(inside)


def test_only_large_products_slow_a_chip_down_that_runs_for_seconds() -> None:
    """At its limit of 700 W, which additions and small products do not reach."""
    large, small, addition, blocks = (float(row[3].rstrip("%")) for row in sustained())
    assert large > 10
    assert max(small, addition) < 1
    assert 1 < blocks < 5
