"""Memory and efficiency along an axis."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.config.axes.axis_samples import pair
from tests.report.charts.conftest import frames_of
from tests.report.charts.drawing import said, texts
from tests.report.sample_run import completed_trial, skipped_trial, spec
from tests.tools.known import known
from zerobench.common.units import format_bytes
from zerobench.config.axes.axes import AXES, LAYOUT
from zerobench.report.charts import lines, series
from zerobench.report.charts import memory_lines as memory
from zerobench.report.export.run_frames import RunFrames
from zerobench.report.figures.make import trial_figures
from zerobench.report.tables.figure import Figure


def test_memory_over_model_size_has_a_point_for_each_trial_of_a_line(
    scaling_frames: RunFrames, scaling_figures: dict[str, Figure]
) -> None:
    figure = scaling_figures["memory-over-model-size"]
    weak = scaling_frames.trials[scaling_frames.trials["strategy"] != "zero2"]
    assert len(figure.table) == len(weak)
    for _, trial in weak.iterrows():
        size = format_bytes(trial["device_peak_bytes"])
        assert any(text.startswith(f"{trial['label']}, ") and size in text for text in said(figure))
    assert len(set(figure.table["line"])) == 6
    assert "zero3 n4" in texts(figure)


def test_memory_over_world_size_joins_trials_of_one_model_and_stage(
    scaling_frames: RunFrames, scaling_figures: dict[str, Figure]
) -> None:
    figure = scaling_figures["memory-over-world-size"]
    by_line = figure.table.groupby("line")["number of ranks"].apply(list)
    assert "gpt2-1.5b zero3" in by_line
    assert all(ranks == ["1", "2", "4"] for ranks in by_line)
    peaks = scaling_frames.trials.set_index("label")["device_peak_bytes"]
    (unit,) = [name for name in map(str, figure.table) if name.startswith("peak")]
    assert unit == "peak (GiB)"
    for label, shown in zip(figure.table["trial"], figure.table[unit], strict=True):
        assert float(shown) * 2**30 == pytest.approx(int(peaks[label]), rel=1e-3)


def test_trials_that_tell_deepspeed_different_things_are_on_different_lines(tmp_path: Path) -> None:
    buckets: tuple[dict[str, int], ...] = ({}, {"zero_optimization.reduce_bucket_size": 500_000_000})
    trials = [
        completed_trial(spec("zero2", gpus_per_node=ranks, ds_config=bucket)) for ranks in (1, 2) for bucket in buckets
    ]
    figure = known(memory.world_size_figure(frames_of(tmp_path, trials, samples=False)))
    assert sorted(set(figure.table["line"])) == ["zero2", "zero2 reduce_bucket_size=5e8"]


def test_keys_that_only_one_stage_reads_are_in_no_line_s_name_where_the_stages_tell_lines_apart(tmp_path: Path) -> None:
    bucket, prefetch = "zero_optimization.reduce_bucket_size", "zero_optimization.stage3_prefetch_bucket_size"
    own = {"zero0": {}, "zero2": {bucket: 1_000_000}, "zero3": {bucket: 1_000_000, prefetch: 0}}
    trials = [
        completed_trial(spec(name, gpus_per_node=ranks, ds_config=keys))
        for ranks in (1, 2)
        for name, keys in own.items()
    ]
    figure = known(memory.world_size_figure(frames_of(tmp_path, trials, samples=False)))
    assert sorted(set(figure.table["line"])) == ["zero0", "zero2", "zero3"]


@pytest.mark.parametrize("axis", [axis for axis in AXES if axis not in LAYOUT])
def test_no_line_joins_trials_that_differ_in_an_axis(axis: str) -> None:
    both = [spec(**({"strategy": "zero2"} | one), gpus_per_node=ranks) for ranks in (2, 4) for one in pair(axis)]
    trials = [trial_figures(skipped_trial(one, "a_rule")) for one in both]
    places = [series.Place(one, one.spec.world_size, 1.0) for one in trials]
    found, number = series.assign_series(places, ("num_nodes", "world_size"))
    assert number == 2
    assert [sorted(place.x for place in line.places) for line in found] == [[2, 4], [2, 4]]
    assert len({line.name for line in found}) == 2


def test_weak_efficiency_is_throughput_per_gpu_over_that_of_the_fewest(scaling_figures: dict[str, Figure]) -> None:
    figure = scaling_figures["weak-scaling-efficiency"]
    # Steps take 0.1 (1 + 0.1 N) seconds for the same batch a rank: 1.1 / 1.2 on two, 1.1 / 1.4 on four ranks, less what
    # rank 3 is slower by (1.06 / 1.01 in the median).
    shown = figure.table.groupby("line")["efficiency (%)"].apply(list)
    assert all(percents == ["100.0", "91.7", "74.9"] for percents in shown)
    assert "fixed per-rank batch" in figure.caption
    assert any(": 75% on 4 ranks, " in text for text in said(figure))


def test_strong_efficiency_joins_trials_of_one_global_batch(scaling_figures: dict[str, Figure]) -> None:
    figure = scaling_figures["strong-scaling-efficiency"]
    # Steps take 1.6 / N + 0.1 seconds for one global batch: 1.7 / 0.9 / 2 and 1.7 / 0.5 / 4, the latter less rank 3's
    # delay.
    assert figure.table["efficiency (%)"].tolist() == ["100.0", "94.4", "81.0"]
    assert set(figure.table["global batch"]) == {"16"}
    assert "fixed global batch" in figure.caption


@given(st.lists(st.floats(0, 300), max_size=20), st.sampled_from([8.0, 13.0]))
def test_names_are_moved_apart_in_their_order_and_stay_in_the_plot(places: list[float], gap: float) -> None:
    moved = lines.spread_out(places, gap, 300.0)
    ordered = sorted(moved)
    assert all(upper - lower >= gap - 1e-6 for lower, upper in pairwise(ordered))
    assert all(-1e-6 <= place <= 300 + 1e-6 for place in moved)
    ranks = sorted(range(len(places)), key=lambda index: places[index])
    assert [moved[index] for index in ranks] == ordered


def test_names_that_are_far_apart_are_left_where_they_are() -> None:
    assert lines.spread_out([200.0, 10.0, 100.0], 13) == [200.0, 10.0, 100.0]
    assert lines.spread_out([50.0, 50.0], 10) == [45.0, 55.0]
