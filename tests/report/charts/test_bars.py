"""Stacked memory by category."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import partial

import pytest

from tests.report.charts.drawing import SVG, root_of, said, texts
from tests.tools.at_least_one import at_least_one
from tests.tools.known import known
from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.records.instants import Instant
from zerobench.records.records import Holder, PeakPart
from zerobench.report.charts import bars
from zerobench.report.charts.bar_marks import _description, chart, cut
from zerobench.report.charts.render import drawing
from zerobench.report.charts.stack import ORDER, Bar, parts_of, stacked
from zerobench.report.export.run_frames import RunFrames
from zerobench.report.tables.figure import Figure
from zerobench.report.words.column_units import Unit

GIB = 2**30


@pytest.fixture(scope="module")
def device(gpu_figures: dict[str, Figure]) -> Figure:
    """The chart of the sample run."""
    return gpu_figures["memory-per-gpu"]


def bars_of(frames: RunFrames) -> list[Bar]:
    """The bars of all that completed."""
    return [bar for _, bar in stacked(frames.figures, Place.DEVICE)]


def column(figure: Figure, start: str) -> str:
    """The name of the table's column that begins so."""
    (found,) = [name for name in map(str, figure.table) if name.startswith(start)]
    return found


def test_the_table_says_what_the_frames_say(gpu_frames: RunFrames, device: Figure) -> None:
    on_device = gpu_frames.peaks[gpu_frames.peaks["place"] == "device"]
    labels = gpu_frames.trials.set_index("trial_id")["label"]
    assert "(GiB)" in column(device, "peak")
    for trial_id, parts in on_device.groupby("trial_id"):
        (row,) = [row for _, row in device.table.iterrows() if row["trial"].removeprefix("! ") == labels[trial_id]]
        assert float(row[column(device, "peak")]) * GIB == pytest.approx(int(parts["bytes"].sum()), rel=1e-3)
        for category, size in zip(parts["category"], parts["bytes"], strict=True):
            shown = float(row[column(device, category.replace("_", " "))]) * GIB
            assert shown == pytest.approx(int(size), abs=GIB / 1000)
    assert len(device.table) == on_device["trial_id"].nunique()


def test_a_part_says_its_trial_its_category_its_bytes_and_its_share(gpu_frames: RunFrames, device: Figure) -> None:
    trials = gpu_frames.trials
    trial_id = trials.loc[trials["label"] == "zero2", "trial_id"].iloc[0]
    peaks = gpu_frames.peaks[(gpu_frames.peaks["trial_id"] == trial_id) & (gpu_frames.peaks["place"] == "device")]
    whole = int(peaks["bytes"].sum())
    size = int(peaks.loc[peaks["category"] == "first_moment", "bytes"].iloc[0])
    expected = f"zero2, first moment (optimizer states): {format_bytes(size)}, {100 * size / whole:.0f}% of the peak"
    assert expected in said(device)
    assert f"zero2, parameters: {format_bytes(int(peaks.iloc[0]['bytes']))}, " in " ".join(said(device))


def test_the_parts_of_a_bar_lie_end_to_end_in_the_order_of_the_palette(gpu_frames: RunFrames) -> None:
    for bar in at_least_one(bars_of(gpu_frames)):
        assert [part.start for part in bar.parts] == [0, *(part.end for part in bar.parts[:-1])]
        places = [ORDER.index(part.group) for part in bar.parts]
        assert places == sorted(places)
        assert bar.drawn == bar.whole == bar.instant.total_bytes


def test_lengths_in_the_drawing_are_proportional_to_bytes(gpu_frames: RunFrames, device: Figure) -> None:
    paths = {
        node.attrib["aria-label"]: float(re.findall(r"h([0-9.]+)", node.attrib["d"])[0])
        for node in root_of(device).iter()
        if node.attrib.get("aria-roledescription") == "bar" and "of the peak" in node.attrib.get("aria-label", "")
    }
    trial = gpu_frames.trials.loc[gpu_frames.trials["label"] == "zero0"].iloc[0]
    peaks = gpu_frames.peaks[
        (gpu_frames.peaks["trial_id"] == trial["trial_id"]) & (gpu_frames.peaks["place"] == "device")
    ]
    sizes = dict(zip(peaks["category"], peaks["bytes"].astype(int), strict=True))
    width = {
        category: next(
            length for text, length in paths.items() if text.startswith(f"zero0, {category.replace('_', ' ')}")
        )
        for category in ("activations", "first_moment", "parameters")
    }
    assert width["activations"] / width["first_moment"] == pytest.approx(
        sizes["activations"] / sizes["first_moment"], rel=1e-3
    )
    assert width["parameters"] / width["first_moment"] == pytest.approx(
        sizes["parameters"] / sizes["first_moment"], rel=1e-3
    )


def test_the_capacity_is_a_line_where_bars_reach_near_it_and_else_a_sentence(
    scaling_frames: RunFrames, scaling_figures: dict[str, Figure], device: Figure
) -> None:
    near = scaling_figures["memory-per-gpu"]
    assert max(bar.whole for bar in bars_of(scaling_frames)) > 0.25 * 80 * GIB
    assert "device capacity: 79.53 GiB" in said(near)
    assert "capacity 80 GiB" in texts(near)
    assert "beyond the chart" in device.caption
    assert not any("capacity" in text for text in [*said(device), *texts(device)])


def test_without_a_known_capacity_nothing_is_said_of_it(cpu_frames: RunFrames) -> None:
    figure = known(bars.device_figure(cpu_frames))
    assert not any("capacity" in text for text in [figure.caption, *said(figure), *texts(figure)])


def test_predictions_are_hatched_and_measurements_are_not(
    predicted_frames: RunFrames, device: Figure, cpu_frames: RunFrames
) -> None:
    figure = known(bars.device_figure(predicted_frames))
    predicted = int((predicted_frames.trials["evidence"] != "measured").sum())
    assert known(figure.svg).count('fill="url(#memory-per-gpu-hatch)"') == predicted > 0
    assert "predicted (simulated, solo)" in figure.caption
    for measured in (device, bars.device_figure(cpu_frames)):
        assert measured is not None
        assert "hatch" not in known(measured.svg)
        assert "predicted" not in measured.caption


def test_a_trial_that_did_not_fit_is_named_and_one_that_is_not_believed_marked(device: Figure) -> None:
    assert "zero0 mb64" in texts(device)
    assert "out of device memory" in texts(device)
    assert "! zero1 mb4 ga2" in texts(device)
    assert "differ from the reference" in device.caption


def test_a_pale_tail_reaches_from_the_peak_to_what_the_trial_needs(gpu_frames: RunFrames, device: Figure) -> None:
    (bar,) = [bar for bar in bars_of(gpu_frames) if bar.name == "zero3"]
    needed = known(bar.needed_bytes)
    assert bar.reach == needed > bar.whole
    assert f"zero3, start-up, allocator slack, CUDA context, NCCL: {format_bytes(needed - bar.whole)}" in said(device)
    assert f"{bar.whole / GIB:.2f}, needs {needed / GIB:.2f} GiB" in texts(device)


def test_the_caption_explains_a_pale_tail_only_where_a_bar_has_one(cpu_frames: RunFrames, device: Figure) -> None:
    on_cpu = known(bars.device_figure(cpu_frames))
    assert all(bar.reach == bar.drawn for bar in bars_of(cpu_frames))
    assert "Pale tail" not in on_cpu.caption
    assert "Pale tail: start-up, allocator slack, CUDA context and NCCL." in device.caption


def test_memory_of_the_host_is_drawn_where_something_is_offloaded(
    gpu_figures: dict[str, Figure], cpu_frames: RunFrames
) -> None:
    figure = gpu_figures["memory-of-host"]
    assert any("first moment (optimizer states)" in text for text in said(figure))
    assert not any("process" in text for text in said(figure))
    assert bars.host_figure(cpu_frames) is None


def test_a_bar_of_another_order_of_magnitude_is_cut_off_and_keeps_its_figure(gpu_frames: RunFrames) -> None:
    known = bars_of(gpu_frames)
    giant = max(known, key=lambda bar: bar.reach)
    small = [bar for bar in known if bar is not giant]
    longest = max(bar.reach for bar in small)
    grown = [replace(part, end=50 * longest) if part is giant.parts[-1] else part for part in giant.parts]
    bars = cut([*small, replace(giant, parts=grown)], 0)
    (shown,) = [bar for bar in bars if bar.is_cut]
    assert shown.name == giant.name
    assert shown.reach == round(1.3 * longest)
    assert shown.needed == 50 * longest
    assert not any(bar.is_cut for bar in cut(known, 0))
    assert not any(bar.is_cut for bar in cut([*small, replace(giant, parts=grown)], 30 * longest))


@pytest.mark.parametrize("short_bytes", [0, 3 * GIB, 12 * GIB, 40 * GIB])
def test_the_figure_beside_a_bar_lies_on_one_side_of_the_capacity(scaling_frames: RunFrames, short_bytes: int) -> None:
    bar = max(bars_of(scaling_frames), key=lambda bar: bar.whole)
    capacity = 80 * GIB
    near = replace(bar, name="near", needed_bytes=capacity - short_bytes, capacity_bytes=capacity)
    over = replace(bar, name="over", needed_bytes=capacity + 3 * GIB, capacity_bytes=capacity)
    unit = Unit("GiB", GIB, 3, ",")
    drawn = drawing(partial(chart, [near, over], [], unit, "GiB", [capacity]), "bars", "bars").draw()
    root = ET.fromstring(drawn)  # noqa: S314 -- our own drawing
    (line,) = [horizontal(mark) for mark in root.iter() if "device capacity" in mark.attrib.get("aria-label", "")]
    figures = [text for text in root.iter(f"{SVG}text") if "needs" in (text.text or "")]
    assert len(figures) == 4  # each with its border
    for text in figures:
        start = horizontal(text)
        end = start + 5.0 * len(text.text or "")  # at least: a digit of 12 pixels is 6.7 wide, a comma 3.3
        assert start > line or end < line, text.text


def horizontal(mark: ET.Element) -> float:
    """Where a mark of the plot stands."""
    return float(re.findall(r"translate\(([-0-9.]+)", mark.attrib["transform"])[0])


def test_a_part_says_on_hovering_who_holds_most_of_it() -> None:
    holder = PeakPart(
        total_bytes=3 * GIB, count=6, module="LlamaMLP", path="layers.*.mlp", holders=[Holder.AUTOGRAD], site=None
    )
    sizes = {Category.ACTIVATIONS: 4 * GIB, Category.PARAMETERS: GIB}
    parts = {Category.ACTIVATIONS: [holder]}
    seen = Instant(0, StepKind.STEADY, Phase.BACKWARD, 5 * GIB, sizes, parts=parts)
    bar = Bar("zero2", seen, parts_of(seen), is_measured=True)
    told = {part.category: _description(bar, part) for part in bar.parts}
    assert told["activations"] == (
        "zero2, activations: 4.00 GiB, 80% of the peak; most: 3.00 GiB in 6 tensors held by autograd: saved for "
        "backward in layers.*.mlp (LlamaMLP)"
    )
    assert told["parameters"] == "zero2, parameters: 1.00 GiB, 20% of the peak"
