"""Kernels by class: by hand, and against the timeline of the same step."""

from __future__ import annotations

import pytest

from tests.estimate.clock.test_kernels import DEVICE
from tests.estimate.clock.test_replay import PACE, written
from tests.estimate.time.predicted_trials import gpu, links, predicted, traced
from tests.tools.known import known
from zerobench.config.models.presets import resolve_model
from zerobench.estimate.clock.kernels import attention_flops, gemm_s
from zerobench.estimate.clock.replay import LATE_CLASS
from zerobench.estimate.clock.roofline import Roofline, kernel_classes
from zerobench.estimate.clock.trace import PhaseStart, Recorder
from zerobench.estimate.time.expected import roofline, timeline
from zerobench.estimate.time.passes import Decoder, decoder_of

LLAMA = decoder_of(resolve_model("llama-7b"))
assert LLAMA is not None
DECODER: Decoder = LLAMA


def test_a_product_moves_each_operand_and_its_result_once() -> None:
    trace = written(lambda step: step.kernel(0, (512, 256, 1024), count=3))
    [product] = kernel_classes(trace, PACE, DECODER, 512, 512)
    assert (product.kind, product.name) == ("products", "512 x 1,024 x 256")
    assert product.flops == 3 * 2 * 512 * 256 * 1024
    assert product.moved_bytes == 3 * 2 * (512 * 1024 + 1024 * 256 + 512 * 256)
    assert product.seconds == pytest.approx(3 * gemm_s(DEVICE, 512, 256, 1024))
    assert known(product.flops_per_s) * product.seconds == pytest.approx(product.flops)


def test_attention_does_half_of_what_is_counted_and_backward_moves_twice_the_bytes() -> None:
    forward, backward = attention_flops(2048, 2048, 4096)

    def two_blocks(step: Recorder) -> None:
        for _ in range(2):
            step.attention(0, int(forward), is_backward=False)
            step.attention(0, int(backward), is_backward=True)

    first, second = sorted(
        kernel_classes(written(two_blocks), PACE, DECODER, 2048, 2048), key=lambda each: each.seconds
    )
    assert (first.name, second.name) == ("attention forward", "attention backward")
    assert (first.flops, second.flops) == (forward, backward), "of two blocks, half of which the mask hides"
    assert first.moved_bytes == pytest.approx(2 * 2048 * 2 * (3 * 4096 + 4096))
    assert second.moved_bytes == pytest.approx(2 * (first.moved_bytes or 0))


def test_what_only_memory_bounds_has_seconds_alone_and_the_update_is_one_class() -> None:
    trace = written(
        lambda step: step.kernel(0, moved_bytes=5),
        lambda step: step.add(PhaseStart("step")),
        lambda step: step.kernel(0, moved_bytes=2),
    )
    found = {each.name: (each.seconds, each.intensity) for each in kernel_classes(trace, PACE, DECODER, 1, 1)}
    assert found == {"element-wise": (5, None), "update": (2, None)}


def test_no_kernel_is_faster_than_its_bound() -> None:
    line = Roofline(DEVICE, ())
    ridge = DEVICE.peak_flops / DEVICE.memory_bytes_per_s
    assert line.most_flops(ridge / 4) == pytest.approx(DEVICE.peak_flops / 4)
    assert line.most_flops(4 * ridge) == DEVICE.peak_flops
    found = known(roofline(traced(predicted(micro_batch_size=4)), gpu(), links()))
    bounded = [each for each in found.classes if each.intensity is not None]
    assert bounded
    for each in bounded:
        assert (each.flops_per_s or 0) < found.most_flops(each.intensity or 0)


def test_the_classes_take_what_the_timeline_of_the_step_says() -> None:
    trial = traced(predicted(num_nodes=4, gradient_accumulation_steps=2))
    found, step = known(roofline(trial, gpu(), links())), known(timeline(trial, gpu(), links()))
    by_kind: dict[str, float] = {}
    for each in found.classes:
        by_kind[each.kind] = by_kind.get(each.kind, 0.0) + each.seconds
    kernels = {name: seconds for name, seconds in step.classes.items() if name != LATE_CLASS}
    assert by_kind == pytest.approx(kernels)


def test_a_trial_without_a_trace_has_none() -> None:
    assert roofline(predicted(), gpu(), links()) is None
