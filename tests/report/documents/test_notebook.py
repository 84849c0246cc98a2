"""What Python's calls return says at a prompt and shows in a notebook."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.report.documents.run import cluster, plan_trials
from tests.report.sample_run import completed_trial, spec, write_run
from zerobench.app.api import Charts, PlanResult, Prediction, RunTables
from zerobench.common.errors import UserError
from zerobench.records.store import load_run
from zerobench.report.documents.view import plan_view, read_plan
from zerobench.report.explain.decided import Decided, decided, decision
from zerobench.report.explain.decision import Decision

PLACE = cluster(nvme="7GB/s")


def planned(path: Path) -> PlanResult:
    write_run(path, plan_trials(PLACE), samples=False)
    _, rows = read_plan(path, PLACE)
    made = decided(rows)
    return PlanResult(path, [Prediction(row, PLACE) for row in rows], made, decision(path, made), PLACE)


def measured(path: Path) -> RunTables:
    trials = [completed_trial(spec(name, gpus_per_node=1)) for name in ("zero1", "zero2")]
    return RunTables(load_run(write_run(path, trials, samples=False).path))


def tables(html: str) -> list[dict[str, list[str]]]:
    """Its tables by their headers, as a notebook's reader has them."""
    written = re.findall("<table.*?</table>", html, re.DOTALL)
    found = [ET.fromstring(table) for table in written]  # noqa: S314 -- written by the code under test
    return [
        {
            head.text or "": [row[column].text or "" for row in table.iterfind("tbody/tr")]
            for column, head in enumerate(table.iterfind("thead/tr/th"))
        }
        for table in found
    ]


def test_a_plan_opens_with_what_the_command_answers(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    answer = plan_view(tmp_path, PLACE).answer
    assert answer is not None
    assert repr(plan).splitlines()[:3] == [answer.title, *answer.first]
    assert plan.reason in repr(plan)
    html = plan._repr_html_()
    assert html.startswith(f"<p><b>{answer.title}</b>")
    [shown] = tables(html)
    assert shown["trial"] == plan.table().index.tolist()
    assert "GPU, GiB" in shown


def test_nothing_that_could_be_predicted_is_said_so() -> None:
    nothing = PlanResult(Path("run"), [], Decided((), None), Decision(reason="nothing fits"), PLACE)
    assert repr(nothing) == "No configuration could be predicted."


def test_a_prediction_says_whether_it_fits_and_shows_its_memory_by_category(tmp_path: Path) -> None:
    by_name = {one.name: one for one in planned(tmp_path).predictions}
    title, memory, speed = repr(by_name["zero3"]).splitlines()
    assert title == "gpt2-2b on 8 x H200 SXM: zero3 fits"
    assert re.fullmatch(
        r"Memory: [\d.]+ GiB of 139\.80 GiB per GPU \(\d+% free\) in steps, start-up [\d.]+ GiB\.", memory
    )
    assert speed.startswith("Speed: ")
    assert {"parameters, MiB", "activations, MiB"} <= set(tables(by_name["zero3"]._repr_html_())[0])


def test_one_that_does_not_fit_says_that(tmp_path: Path) -> None:
    small = cluster(gpu="l4")
    write_run(tmp_path, plan_trials(small), samples=False)
    _, rows = read_plan(tmp_path, small)
    [zero0] = [row for row in rows if row.label == "zero0"]
    title, memory, *_ = repr(Prediction(zero0, small)).splitlines()
    assert title == "gpt2-2b on 8 x L4: zero0 does not fit"
    assert re.fullmatch(
        r"Memory: [\d.]+ GiB of [\d.]+ GiB per GPU \([\d.]+ GiB too much\) in steps, start-up [\d.]+ GiB\.", memory
    )


def test_a_run_says_which_it_is_and_shows_its_tables(tmp_path: Path) -> None:
    run = measured(tmp_path)
    assert repr(run) == f"{run.run.run_id}: 2 trials, in {tmp_path}"
    memory, speed = tables(run._repr_html_())
    assert memory["trial"] == speed["trial"] == ["zero1", "zero2"]
    assert "parameters, GiB" in memory
    assert "tokens/s" in speed


def test_charts_draw_themselves_one_below_the_other(tmp_path: Path) -> None:
    charts = measured(tmp_path).charts
    assert isinstance(charts, Charts)
    html = charts._repr_html_()
    assert html.count("<figure") == len(charts) > 1
    assert repr(charts["memory-per-gpu"]) == "Peak device memory by category"
    assert len(repr(charts)) < 100 * len(charts)


def test_figures_keep_their_types_where_none_is_known(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    unknown = Prediction(replace(plan.predictions[0].row, expected=None), PLACE).table()
    assert unknown["expected_step_s"].isna().all()
    assert unknown.dtypes.to_dict() == plan.table().dtypes.to_dict()
    assert unknown.dtypes["host_needed_bytes"] == "Int64"


def test_a_mistake_is_one_line_in_a_notebook() -> None:
    assert UserError("--gpu: 'h1000'")._render_traceback_() == ["zerobench: --gpu: 'h1000'"]
