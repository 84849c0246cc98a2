"""Trials against each other: the front, the ranks, the predictions, the offloads."""

from dataclasses import replace
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.charts.drawing import said, texts
from tests.report.sample_run import completed_trial, spec
from tests.tools.known import known
from zerobench.common.units import format_bytes
from zerobench.config.trial.trial import Evidence
from zerobench.report.charts import offload_traffic, pareto, prediction_error
from zerobench.report.charts.series import Place
from zerobench.report.export.run_frames import RunFrames
from zerobench.report.figures.make import trial_figures
from zerobench.report.figures.parity import Parity
from zerobench.report.tables.figure import Figure
from zerobench.report.words import palette

TRIAL = trial_figures(completed_trial(spec("zero1", gpus_per_node=1)))
Points = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6), st.booleans()), min_size=1, max_size=12)


@given(Points)
def test_on_the_front_is_what_no_believed_trial_beats(points: list[tuple[int, int, bool]]) -> None:
    doubt = Parity("a", 9.0, 0.1, 1)
    places = [
        Place(replace(TRIAL, parity=None if is_believed else doubt), size, speed) for size, speed, is_believed in points
    ]
    believed = [(size, speed) for size, speed, is_believed in points if is_believed]
    expected = [
        is_believed
        and not any(
            other[0] <= size and other[1] >= speed and (other[0] < size or other[1] > speed) for other in believed
        )
        for size, speed, is_believed in points
    ]
    assert [place.is_best for place in pareto.on_front(places)] == expected


def test_throughput_is_that_of_one_gpu_and_a_trial_in_doubt_is_on_no_front(
    gpu_frames: RunFrames, gpu_figures: dict[str, Figure]
) -> None:
    figure = gpu_figures["throughput-against-memory"]
    table: Any = figure.table.set_index("trial")
    trials: Any = gpu_frames.trials.set_index("label")
    expected = trials.loc["zero1", "tokens_per_s"] / 8
    assert float(table.loc["zero1", "tokens/s per GPU"].replace(",", "")) == pytest.approx(expected, abs=0.1)
    assert table.loc["! zero1 mb4 ga2", "on the front"] == ""
    assert table.loc["zero3 opt=nvme param=cpu", "on the front"] == "yes"
    assert "zero0" in table.index
    assert table.loc["zero0", "on the front"] == ""
    assert any(text.startswith("zero1: 35,") and text.endswith(", on the front") for text in said(figure))
    # The allocator retried in this one, so that its throughput is void.
    assert not any("reduce_bucket" in label for label in table.index)


def test_models_are_not_compared_with_each_other(scaling_frames: RunFrames, scaling_figures: dict[str, Figure]) -> None:
    figure = scaling_figures["throughput-against-memory"]
    fronts = figure.table[figure.table["on the front"] == "yes"]
    assert set(fronts["model"]) == set(scaling_frames.trials["model"])
    assert "gpt2-1.5b, sequence length 1024" in texts(figure)


def test_a_strategy_has_its_colour_in_each_of_the_plots_side_by_side(scaling_figures: dict[str, Figure]) -> None:
    drawn = known(scaling_figures["throughput-against-memory"].drawing)
    scales = [
        layer["encoding"]["stroke"]["scale"]
        for plot in drawn.specification["concat"]
        for layer in plot["layer"]
        if layer["mark"]["type"] == "point"
    ]
    assert len(scales) > 4
    strategies = ["zero1", "zero2", "zero3"]
    expected = {"domain": strategies, "range": [palette.strategy_colour(name) for name in strategies]}
    assert scales == [expected] * len(scales)


def test_the_odd_rank_is_named(gpu_frames: RunFrames, gpu_figures: dict[str, Figure]) -> None:
    figure = gpu_figures["spread-over-ranks"]
    ranks = gpu_frames.ranks
    trial_id = gpu_frames.trials.loc[gpu_frames.trials["label"] == "zero1", "trial_id"].iloc[0]
    odd = ranks[(ranks["trial_id"] == trial_id) & (ranks["rank"] == 3)]["device_peak_bytes"].iloc[0]
    assert f"zero1, rank 3: {format_bytes(odd)}, outlier" in said(figure)
    assert texts(figure).count("rank 3") == len(figure.table)
    assert set(figure.table["outlier rank"]) == {"3"}


def test_each_peak_that_was_predicted_stands_beside_the_measured_one(predicted_frames: RunFrames) -> None:
    figure = known(prediction_error.figure(predicted_frames))
    errors = predicted_frames.errors
    totals = errors[(errors["category"] == "total") & (errors["quantity"] == "peak") & (errors["step"] == "steady")]
    found = prediction_error.largest_peaks(predicted_frames)
    assert len(found) == len(figure.table) == len(totals.drop_duplicates(["trial_id", "place"]))
    for (trial_id, place), group in totals.groupby(["trial_id", "place"]):
        [pair] = [pair for pair in found if (pair.trial.trial_id, pair.cell.place) == (trial_id, place)]
        assert pair.cell.measured_bytes == group["measured_bytes"].max()
        assert pair.error == pytest.approx(pair.cell.predicted_bytes / pair.cell.measured_bytes - 1)
    points = [text for text in said(figure) if "predicted" in text]
    assert len(points) == len(found)
    middle = 100 * median(abs(pair.error) for pair in found)
    assert f"{middle:.1f}%" in figure.title or f"{middle:.2f}%" in figure.title


def test_the_histogram_counts_every_error_once(predicted_frames: RunFrames) -> None:
    figure = prediction_error.figure(predicted_frames)
    bins = [text for text in said(figure) if text.endswith("% off")]
    assert figure is not None
    assert sum(int(text.split()[0]) for text in bins) == len(figure.table)


@given(st.floats(0, 1e4))
def test_bins_are_of_a_round_width_and_few(largest: float) -> None:
    width = prediction_error.bin_width(largest)
    assert 2 * largest / width <= 21 + 1e-6
    assert float(f"{width:.1e}"[0]) in {1, 2, 5}


def test_traffic_to_nvme_and_bytes_on_the_host_are_those_of_the_frames(
    gpu_frames: RunFrames, gpu_figures: dict[str, Figure]
) -> None:
    figure = gpu_figures["offload-traffic"]
    row: Any = figure.table.set_index("trial").loc["zero3 opt=nvme param=cpu"]
    trial: Any = gpu_frames.trials.set_index("label").loc["zero3 opt=nvme param=cpu"]
    assert float(row["NVMe read (GB/s)"]) == pytest.approx(trial["nvme_read_bytes_per_s"] / 1e9, abs=1e-3)
    assert float(row["NVMe written (GB/s)"]) == pytest.approx(trial["nvme_write_bytes_per_s"] / 1e9, abs=1e-3)
    assert f"zero3 opt=nvme param=cpu: {trial['nvme_read_bytes_per_s'] / 1e9:.3f} GB/s read" in said(figure)
    peaks = gpu_frames.peaks[gpu_frames.peaks["trial_id"] == trial["trial_id"]]
    on_nvme = int(peaks[peaks["place"] == "nvme"]["bytes"].sum())
    (unit,) = [name for name in map(str, figure.table) if name.startswith("nvme ")]
    assert float(row[unit]) * 2**30 == pytest.approx(on_nvme, rel=1e-2)
    assert any(format_bytes(on_nvme) in text and "on nvme" in text for text in said(figure))


def test_a_simulated_step_has_no_rate_because_its_time_is_the_simulators(gpu_frames: RunFrames) -> None:
    simulated = [
        replace(one, spec=one.spec.model_copy(update={"evidence": Evidence.SIMULATED})) for one in gpu_frames.figures
    ]
    figure = known(offload_traffic.figure(replace(gpu_frames, figures=simulated)))
    assert set(figure.table["NVMe read (GB/s)"]) == {"-"}
    assert not any("GB/s" in text for text in said(figure))
    assert any("on nvme" in text for text in said(figure))
