"""What the host issues for a block, and how many it updates."""

import pytest

from tests.estimate.time.predicted_trials import gpu, links, predicted
from tests.report.predicted_trial import asked
from tests.tools.known import known
from zerobench.config.models.parameters import count_parameters
from zerobench.config.models.presets import resolve_model
from zerobench.estimate.time.engines import (
    device_update_s,
    engines_update_s,
    issue_of,
    late_update_s,
    updated_blocks,
)
from zerobench.estimate.time.expected import timed_work
from zerobench.estimate.time.host import Issue
from zerobench.estimate.time.kernels import moved_by_element_s, moved_s
from zerobench.estimate.time.passes import decoder_of

LAYERS = 32


def test_an_update_waits_for_its_host_as_its_engine_does() -> None:
    """ZeRO-1's search for infinities is launched while backward still runs, stage 0's is waited for; torch's update is
    launched while its kernels run.
    """
    late: dict[str, tuple[float, float]] = {}
    for strategy in ("single", "zero0", "zero1"):
        model = resolve_model("gpt2-125m")
        trial = predicted(model=model, strategy=strategy, gpus_per_node=1, optimizer="fused_adamw")
        work, device, decoder = known(timed_work(trial, gpu(), links())).replayed
        late[strategy] = (
            late_update_s(work, device, decoder, ahead_s=0.0),
            late_update_s(work, device, decoder, ahead_s=1.0),
        )
    assert max(late["single"]) < 1e-4
    assert late["zero0"][0] == late["zero0"][1] > 0.01
    assert late["zero1"][0] > late["zero1"][1]


def test_an_engines_update_is_its_optimizers_work_and_its_own() -> None:
    """Per parameter 28 bytes of FusedAdam at the memory's rate, and 46 of ZeRO-1's own on one rank by element."""
    work, device, _ = known(
        timed_work(predicted(strategy="zero1", gpus_per_node=1, optimizer="fused_adamw"), gpu(), links())
    ).replayed
    parameters = known(count_parameters(resolve_model("llama-7b"))).total
    own_s = moved_by_element_s(device, 46 * parameters)
    assert engines_update_s(work, device) == pytest.approx(own_s, rel=0.001)
    assert device_update_s(work, device) == pytest.approx(own_s + moved_s(device, 28 * parameters), rel=0.001)


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
