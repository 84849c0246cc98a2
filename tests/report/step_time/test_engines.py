"""What the host issues for a block, and how many it updates."""

import pytest

from tests.report.predicted_trial import asked
from tests.tools.known import known
from zerobench.report.step_time.engines import issue_of, updated_blocks
from zerobench.spec.presets import resolve_model
from zerobench.timing.host import Issue
from zerobench.timing.passes import decoder_of

LAYERS = 32


def test_unless_said_gradients_are_reduced_within_the_pass() -> None:
    model = resolve_model("llama-7b")
    spec, decoder = asked("zero1", model=model), known(decoder_of(model))
    within, after = issue_of(spec, decoder), issue_of(spec, decoder, after=True)
    assert within.reduced == Issue(0.0, 0.0)
    assert after.reduced.python_us > 0
    assert within.backward == after.backward


@pytest.mark.parametrize(
    ("strategy", "frozen", "blocks"),
    [
        ("zero0", None, LAYERS),
        ("zero2", None, LAYERS / 8),
        ("zero3", r"embed|layers\.\d\.|layers\.1[0-5]\.", LAYERS / 2),
        ("zero2", r"embed|layers\.\d\.|layers\.1[0-5]\.", LAYERS / 16),
    ],
)
def test_blocks_are_updated_that_are_trained_at_stages_1_and_2_a_ranks_own(
    strategy: str, frozen: str | None, blocks: float
) -> None:
    assert updated_blocks(asked(strategy, model=resolve_model("llama-7b"), frozen=frozen), LAYERS) == blocks
