"""What transformers' own blocks and losses move, beside the fitted runs'."""

import pytest

from tests.timing.predicted_trials import gpu
from tests.tools.known import known
from zerobench.spec.presets import resolve_model
from zerobench.spec.trial import CrossEntropy, Precision
from zerobench.timing.device import Device, device_of
from zerobench.timing.passes import decoder_of
from zerobench.timing.rates import Rates, shipped_rates
from zerobench.timing.transformers_blocks import LLAMA, as_run, words_over_width

MODEL = resolve_model("llama-1b")
DECODER = known(decoder_of(MODEL))
FITTED: Device = known(device_of(gpu(), Precision.BF16))
TODAY = shipped_rates().today


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
