"""What a predicted step would take on other hardware."""

import pytest

from tests.estimate.time.predicted_trials import predicted, traced
from tests.report.sample_run import completed_trial, spec
from tests.tools.refusals import one_line
from zerobench.common.errors import UserError
from zerobench.estimate.clock.larger import of_more_tokens
from zerobench.report.explain.topic import as_text
from zerobench.report.explain.what_if import what_if_topic

TRIAL = traced(predicted(num_nodes=4))


def seconds(asked: str) -> tuple[float, float]:
    figures = what_if_topic(TRIAL, asked).figures["what_if"]
    return figures["expected_step_s"], figures["changed_step_s"]


@pytest.mark.parametrize("asked", ["link=2x", "link=900GB/s", "gpu=B200 SXM", "gpu=h200,link=2x"])
def test_faster_hardware_makes_the_step_shorter(asked: str) -> None:
    now, then = seconds(asked)
    assert then < now


def test_a_slower_network_is_told_with_its_share() -> None:
    now, then = seconds("network=0.1x")
    assert then > 1.5 * now
    words = as_text([what_if_topic(TRIAL, "network=0.1x")])
    assert f"{100 * (then / now - 1):+.1f}%" in words
    assert "exposed communication" in " ".join(words.split())


def test_twice_the_batch_is_more_work_a_step_and_less_a_token() -> None:
    now, then = seconds("batch=2x")
    assert now < then < 2 * now
    words = " ".join(as_text([what_if_topic(TRIAL, "batch=2x")]).split())
    assert f"Tokens/s: {100 * (2 * now / then - 1):+.1f}%; memory not asked." in words
    assert "Tokens/s" not in as_text([what_if_topic(TRIAL, "link=2x")])
    both = seconds("batch=2x,link=2x")[1]
    assert both < then
    [small], [large] = TRIAL.ranks, of_more_tokens(TRIAL, 2).ranks
    assert [row.flops for row in large.flops] == [2 * row.flops for row in small.flops]
    assert large.flops_per_step == 2 * (small.flops_per_step or 0)
    assert large.collectives == small.collectives


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("batch=1.5x", "batch: '1.5x' is not a whole multiple from 2x"),
        ("batch=1x", "batch: '1x' is not a whole multiple from 2x"),
        ("link", "is not a change"),
        ("speed=2x", "choices: gpu, link"),
        ("link=0x", "must be above 0"),
        ("nvme=2x", "base rate unknown"),
        ("link=fast", "is not a rate"),
        ("gpu=abacus", "--what-if gpu.*abacus"),
    ],
)
def test_what_is_no_change_is_one_line_with_the_choices(asked: str, words: str) -> None:
    with one_line("--what-if", match=words):
        what_if_topic(TRIAL, asked)


def test_of_a_measured_trial_no_time_is_expected() -> None:
    with pytest.raises(UserError, match="no expected time for this trial"):
        what_if_topic(completed_trial(spec("zero3")), "link=2x")
