"""Host memory for each parameter: who holds how many bytes, and what page-locking rounds up."""

from __future__ import annotations

import pytest

from tests.report.explain.runs import BUCKETS, OFFLOADED, QUICKSTART, named
from zerobench.report.tables.host_parameters import holders


def test_offloaded_states_take_four_bytes_a_parameter_each_however_many_ranks_divide_them():
    found = {one.name: one for one in holders(named(BUCKETS, OFFLOADED).trial)}
    for name in ("fp32 masters", "first moment", "second moment", "fp32 gradients"):
        assert found[name].steady == pytest.approx(4, rel=1e-3)
    parts = [one.steady for name, one in found.items() if name != "together"]
    assert sum(part or 0 for part in parts) == pytest.approx(found["together"].steady, rel=1e-3)
    assert found["together"].node_bytes == 8 * (found["together"].rank_bytes or 0)


def test_a_trial_that_offloads_nothing_has_no_such_table():
    assert list(holders(named(QUICKSTART, "zero2").trial)) == []
