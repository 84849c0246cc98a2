"""All charts of a run together: what each of them owes its reader."""

import re
from pathlib import Path

import pytest

from tests.estimate.time.predicted_trials import predicted
from tests.report.charts.conftest import HOSTILE, NOT_XML, frames_of
from tests.report.charts.drawing import SVG, root_of, said, texts
from tests.report.sample_run import completed_trial, model, spec
from tests.tools.at_least_one import at_least_one
from zerobench.report.charts import bars, colours, figures, memory_lines, pareto
from zerobench.report.export.run_frames import RunFrames, run_frames
from zerobench.report.tables.figure import Figure

GPU = [
    "memory-per-gpu",
    "model-states",
    "memory-of-host",
    "memory-within-a-step",
    "nvml-to-categories",
    "throughput-against-memory",
    "spread-over-ranks",
    "offload-traffic",
]
SCALING = [
    "memory-per-gpu",
    "model-states",
    "memory-over-model-size",
    "memory-over-world-size",
    "memory-within-a-step",
    "nvml-to-categories",
    "throughput-against-memory",
    "weak-scaling-efficiency",
    "strong-scaling-efficiency",
    "spread-over-ranks",
]


@pytest.fixture(scope="module")
def gpu(gpu_figures: dict[str, Figure]) -> list[Figure]:
    """The charts of the sample run."""
    return list(gpu_figures.values())


@pytest.fixture(scope="module")
def scaling(scaling_figures: dict[str, Figure]) -> list[Figure]:
    """The charts of a run with a hostile name."""
    return list(scaling_figures.values())


def test_a_run_has_the_charts_that_its_trials_allow_in_one_order(
    gpu: list[Figure], scaling: list[Figure], cpu_frames: RunFrames, tmp_path: Path
) -> None:
    assert [figure.key for figure in gpu] == GPU
    assert [figure.key for figure in scaling] == SCALING
    least = ["memory-per-gpu", "model-states", "memory-within-a-step", "throughput-against-memory"]
    assert [figure.key for figure in figures(cpu_frames)] == [*least, "spread-over-ranks"]
    untraced = frames_of(tmp_path, [predicted()], samples=False)
    assert [figure.key for figure in figures(untraced)] == least


def test_a_run_without_trials_has_no_charts() -> None:
    assert list(figures(run_frames([]))) == []


def test_every_mark_of_every_chart_says_what_it_is(gpu: list[Figure], scaling: list[Figure]) -> None:
    for figure in at_least_one([*gpu, *scaling]):
        marks = said(figure)
        assert marks, figure.key
        assert all(re.search(r"\d", text) for text in marks), figure.key
        # What nobody wrote, Vega makes of the names of a mark's columns.
        assert not any(re.search(r"\b(start|begin|size|x|y|said): |undefined|NaN|null", text) for text in marks)


def test_every_chart_has_its_table_of_text_and_words_that_read_it(gpu: list[Figure], scaling: list[Figure]) -> None:
    for figure in at_least_one([*gpu, *scaling]):
        assert re.fullmatch(r"[a-z0-9-]+", figure.key)
        assert len(figure.table) > 0
        assert all(isinstance(cell, str) for column in figure.table for cell in figure.table[column]), figure.key
        assert figure.title[0].isupper()
        assert figure.caption.endswith(".")


def test_every_colour_is_a_variable_that_the_palette_declares(gpu: list[Figure], scaling: list[Figure]) -> None:
    declared = set(colours("light"))
    for figure in at_least_one([*gpu, *scaling]):
        for node in at_least_one(root_of(figure).iter()):
            for name in ("fill", "stroke"):
                value = node.attrib.get(name, "none")
                if value.startswith("var("):
                    assert value[4:-1] in declared, (figure.key, value)
                else:
                    assert value in {"none", "transparent", f"url(#{figure.key}-hatch)"}, (figure.key, value)


def test_a_drawing_takes_the_width_it_is_given_and_is_about_900_wide(gpu: list[Figure], scaling: list[Figure]) -> None:
    for figure in at_least_one([*gpu, *scaling]):
        root = root_of(figure)
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        assert root.attrib["width"] == "100%"
        assert "height" not in root.attrib
        assert 600 < width < 1000, figure.key
        assert 0 < height < 1300, figure.key


def test_marks_that_say_nothing_do_not_catch_the_pointer(gpu: list[Figure]) -> None:
    silent = [
        group
        for figure in gpu
        for group in root_of(figure).iter(f"{SVG}g")
        if "role-mark" in group.attrib.get("class", "") and group.attrib.get("aria-hidden") == "true"
    ]
    assert silent
    assert all(group.attrib["pointer-events"] == "none" for group in silent)


def test_a_hostile_name_is_text_and_nothing_else(scaling: list[Figure]) -> None:
    shown = [figure for figure in scaling if any(HOSTILE in text for text in [*texts(figure), *said(figure)])]
    assert {figure.key for figure in shown} >= {"memory-per-gpu", "memory-over-world-size", "throughput-against-memory"}
    for figure in scaling:
        tags = {node.tag.removeprefix(SVG) for node in root_of(figure).iter()}
        assert tags <= {"svg", "g", "path", "line", "text", "rect", "defs", "pattern", "title", "tspan"}, figure.key
        assert not any(
            name.startswith("on") or "href" in name for node in root_of(figure).iter() for name in node.attrib
        )


def test_a_name_that_xml_cannot_hold_leaves_the_drawings_well_formed(tmp_path: Path) -> None:
    trials = [
        completed_trial(spec("zero1", gpus_per_node=ranks, model=model(f"{NOT_XML}{layers}", layers, 64)))
        for ranks in (1, 2)
        for layers in (2, 4)
    ]
    frames = frames_of(tmp_path, trials, samples=False)
    drawn = [make(frames) for make in (bars.device_figure, memory_lines.model_size_figure, pareto.figure)]
    shown = ["".join([*texts(figure), *said(figure)]) for figure in drawn]
    assert all("[31mred" in text and "\x1b" not in text for text in shown)


def test_no_specification_holds_an_expression_made_of_a_value(scaling_frames: RunFrames) -> None:
    drawn = [figure.drawing.specification for figure in figures(scaling_frames) if figure.drawing is not None]
    assert len(drawn) == len(SCALING)
    assert list(expressions(drawn)) == []


def expressions(node: object) -> list[str]:
    """Where a specification holds what Vega-Lite evaluates; `values` is data and is never evaluated."""
    if isinstance(node, list):
        return [found for one in node for found in expressions(one)]
    if not isinstance(node, dict):
        return []
    evaluated = {"expr", "signal", "calculate", "filter", "test", "labelExpr", "transform", "params"}
    # An order of values that is written out becomes an expression of them when Vega-Lite compiles it.
    own = [key for key, value in node.items() if key in evaluated or (key == "sort" and isinstance(value, list))]
    return own + [found for key, value in node.items() if key != "values" for found in expressions(value)]


def test_the_search_for_expressions_finds_them() -> None:
    assert expressions([{"x": {"sort": ["a"]}}, {"transform": []}, {"data": {"values": [{"expr": "1"}]}}]) == [
        "sort",
        "transform",
    ]


def test_a_chart_of_many_trials_shows_thirty_of_every_stage_and_says_so(tmp_path: Path) -> None:
    trials = [
        completed_trial(spec(f"zero{stage}", gpus_per_node=1, micro_batch_size=batch, model=model("m", 2, 64)))
        for stage in range(4)
        for batch in range(1, 12)
    ]
    figure = bars.device_figure(frames_of(tmp_path, trials, samples=False))
    assert figure is not None
    assert len(figure.table) == 30
    assert {label.split()[0] for label in figure.table["trial"]} == {f"zero{stage}" for stage in range(4)}
    assert "30 of 44 trials" in figure.caption
