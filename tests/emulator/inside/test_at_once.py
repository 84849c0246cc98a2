"""Parts that are copied at once leave in torch's own caching allocator, to the byte, what DeepSpeed's loops leave."""

import itertools
from pathlib import Path

import pytest

from tests.tools.at_least_one import at_least_one

PROGRAM = Path(__file__).with_name("at_once_program.py")


@pytest.fixture(scope="module")
def histories(emulated):
    """By DeepSpeed's own functions, and by ours."""
    return emulated(PROGRAM.read_text())


@pytest.mark.parametrize("work", ["gathered", "reduced"])
def test_the_allocator_is_asked_for_the_same_blocks_in_the_same_order_on_the_same_streams(histories, work):
    deepspeeds, ours = histories
    assert ours[work] == deepspeeds[work]
    assert len({entry[0] for entry in ours[work]}) >= 3  # taken, asked to give back, given back


def test_a_gathered_buffer_that_another_stream_still_uses_is_given_back_later(histories):
    for one in at_least_one(histories):
        actions = [action for action, *_ in one["gathered"]]
        pairs = [pair for pair in itertools.pairwise(actions) if pair[0] == "free_requested"]
        assert not all(after == "free_completed" for _, after in pairs)
