"""What transformers' own blocks and losses move, beside the fitted runs'."""

import pytest

from tests.estimate.time.predicted_trials import gpu
from tests.tools.known import known
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import CrossEntropy, Precision
from zerobench.estimate.clock.device import Device, device_of
from zerobench.estimate.clock.rates import Rates, shipped_rates
from zerobench.estimate.time.passes import decoder_of
from zerobench.estimate.time.transformers_blocks import (
    FUSED,
    LLAMA,
    NEOX,
    BlockWords,
    as_run,
    words_of,
    words_over_width,
)

MODEL = resolve_model("llama-1b")
DECODER = known(decoder_of(MODEL))
FITTED: Device = known(device_of(gpu(), Precision.BF16))
TODAY = shipped_rates().today


ADD, CAST, PASS = 3, 3, 2
"""16-bit words an element: of a sum of two or a product of two, of a cast to fp32 or from it, and read and written."""
IN_FP32 = 2 * PASS
NORM = CAST + IN_FP32 + 2 + IN_FP32 + CAST + PASS  # cast, squared, averaged, scaled, cast, weighted
ROTARY = PASS + (1 + PASS) + PASS + ADD  # by the cosine, half negated and joined, by the sine, added
BLOCKS = [
    (LLAMA, (2 * NORM + 2 * ADD, ROTARY, PASS + ADD), (2 * 46 + 5 * ADD, 16, 2 * ADD + 3)),
    (FUSED, (2 * PASS + 2 * ADD, 0, PASS), (2 * 3 + 2 * ADD + 5 + 2 * 3, 0, 3 + 1)),
    (NEOX, (2 * PASS + 2 * ADD + 2 * PASS + ROTARY // 2, 0, PASS), (48, 0, 3 + 1)),  # a quarter of each head is rotated
    (words_of(resolve_model("gpt2-125m")), (10, 0, 6 * PASS + 2 * ADD), (23, 0, 6 * PASS + 4 * ADD + 3 + 1 + 1)),
]


@pytest.mark.parametrize(("words", "forward", "backward"), BLOCKS, ids=["llama", "fused", "neox", "gpt2"])
def test_a_block_moves_the_words_of_its_operations(
    words: BlockWords, forward: tuple[int, ...], backward: tuple[int, ...]
) -> None:
    assert words == (forward, backward)
    sizes = DECODER.hidden, (DECODER.qkv_width + DECODER.attention_width) // 2, DECODER.mlp_width
    assert words.forward.of(DECODER) == sum(each * size for each, size in zip(forward, sizes, strict=True))
    assert (words_of(MODEL), words_of(resolve_model("mixtral-8x7b"))) == (LLAMA, None)


def rates(*, fuses: bool, loss: CrossEntropy = CrossEntropy.FULL) -> Rates:
    return as_run(FITTED, MODEL, DECODER, 2048, fuses=fuses, alone=True, loss=loss).rates


@pytest.mark.parametrize("fuses", [True, False])
@pytest.mark.parametrize(("loss", "words"), [("chunked", 22), ("liger", 2), ("model_dtype", 7)])
def test_a_loss_moves_what_transformers_own_was_timed_to_by_the_words_of_both(
    loss: str, words: int, fuses: bool
) -> None:
    assert rates(fuses=fuses, loss=CrossEntropy(loss)).loss_words == pytest.approx(TODAY.loss_words * words / 20)


def test_fused_blocks_move_what_the_fitted_runs_did_and_eager_ones_what_was_counted_at_their_share() -> None:
    fused, eager = rates(fuses=True), rates(fuses=False)
    assert (fused.forward_words, fused.loss_words) == (FITTED.rates.forward_words, FITTED.rates.loss_words)
    counted = words_over_width(LLAMA, DECODER)["forward_words"]
    assert (eager.forward_words, eager.loss_words) == pytest.approx((counted / TODAY.eager_share, TODAY.loss_words))


@pytest.mark.parametrize(
    ("name", "head", "alone", "times"),
    [("llama-1b", 64, True, TODAY.alone), ("llama-7b", 128, False, TODAY.among_ranks)],
)
def test_products_attention_and_the_loop_are_todays(name: str, head: int, alone: bool, times: float) -> None:
    kernels = TODAY.kernels[FITTED.kind]
    found = as_run(FITTED, resolve_model(name), DECODER, 2048, fuses=True, alone=alone).rates
    assert (found.in_programs, found.gemm_share) == (times, kernels.gemm_share)
    assert (found.step_s, found.micro_batch_s, found.spread) == (TODAY.step_s, 0.0, TODAY.spread)
    for way, (share, half) in kernels.attention[head].items():
        assert getattr(found, f"attention_{way}_share") == pytest.approx(share * 2048 / (2048 + half), rel=1e-12)
