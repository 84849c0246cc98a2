"""What a playing process says of itself."""

import pytest

from zerobench.launch.emulate.part import Refusal
from zerobench.records.records import Standing


@pytest.mark.parametrize(("asked", "in_pieces"), [(7, True), (8, False)])
def test_a_request_that_all_that_is_free_together_would_hold_was_refused_for_want_of_one_piece(asked, in_pieces):
    standing = Standing(allocated_bytes=5, reserved_bytes=10, largest_free_bytes=0)
    refusal = Refusal(bytes_asked=asked, bytes_free=2, standing=standing, during="start-up")
    assert refusal.in_pieces is in_pieces
