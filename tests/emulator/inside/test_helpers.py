"""SuperOffload and ZenFlow run on the emulated GPU, and what their own processes hold has names on the host."""

from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("helpers_program.py")
OWN = 8 * (2048 * 2048 + 2048) // 8
"""Parameters of a rank of 8."""


def test_superoffload_keeps_masters_both_moments_and_a_page_locked_buffer_for_gradients(emulated):
    host = emulated(PROGRAM.read_text(), "superoffload")
    assert host["master_weights"] == host["first_moment"] == host["second_moment"]
    assert host["master_weights"] == pytest.approx(4 * OWN, rel=0.01)
    assert host["pinned_buffers"] >= 4 * OWN
    assert abs(host["unattributed"]) <= 0.01 * host["total"]


def test_zenflow_that_overlaps_keeps_two_sets_of_moments_and_a_snapshot_of_the_masters(emulated):
    host = emulated(PROGRAM.read_text(), "zenflow")
    assert host["master_weights"] == pytest.approx(4 * OWN, rel=0.01)
    assert host["first_moment"] == host["second_moment"] == pytest.approx(2 * host["master_weights"], rel=0.01)
    assert host["staging"] >= host["master_weights"]
    assert abs(host["unattributed"]) <= 0.01 * host["total"]
