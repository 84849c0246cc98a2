"""What gloo takes by itself is measured with real ranks."""

from benchmarks.timing import gloo_times
from zerobench.estimate.time.cpu_ranks import timed


def test_real_gloo_is_timed_by_kind_and_size(monkeypatch):
    monkeypatch.setattr(gloo_times, "_ROUNDS", 1)
    rows = gloo_times.measured((1 << 10, 1 << 16))
    assert {row.kind for row in rows} == {row.kind for row in timed()}
    assert all(row.duration_ns > 0 for row in rows)
