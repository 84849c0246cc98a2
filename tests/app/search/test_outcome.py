"""A run has one decision: every place that shows it names the same configuration, with the same reason and rival."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.report.sample_run import sample_trials, write_run
from tests.tools.known import known
from tests.tools.printed import printed
from zerobench.app import api
from zerobench.app.terminal.app import main
from zerobench.records.folder import RunFolder
from zerobench.records.store import load_run
from zerobench.report.documents.page.assemble import page_html
from zerobench.report.documents.report import markdown_report
from zerobench.report.documents.show import show_run
from zerobench.report.explain.decision import Decision
from zerobench.report.export.frames_document import json_document
from zerobench.report.figures.run.runs import run_figures

CLUSTER = ["--gpus", "8", "--gpu", "a100-40", "--host-memory", "1TB", "--evidence", "formula"]
TUNE = ["tune", "llama-7b", *CLUSTER, "--stage", "1,2", "--global-batch", "8"]
PLAN = ["plan", "llama-7b", *CLUSTER]
WITH_BATCH = ["plan", "llama-7b", *CLUSTER, "--stage", "2,3", "--global-batch", "16"]
RELIEVED = ["plan", "gpt2-1.5b", "--gpus", "2", "--gpu", "rtx 4090", "--host-memory", "4GB", "--formula"]
RELIEVED += ["--stage", "2", "--sequence-length", "1024", "--micro-batch", "2"]


@pytest.fixture(autouse=True)
def _without_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No program of the machine is asked what it is, and no line is wrapped."""
    monkeypatch.setattr("zerobench.app.search.predict.capture_environment", dict)
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.chdir(tmp_path)


def shown(path: Path) -> Mapping[str, str]:
    """All that renders a run's decision, as text without line breaks or escapes."""
    figures = run_figures([load_run(path)])
    [decided] = json.loads(json_document(figures))["decisions"]
    [loaded] = api.load(str(path)).decisions
    texts = {
        "show": printed(partial(show_run, path), 1000),
        "page": page_html(figures, []),
        "Markdown": markdown_report(figures).replace("\\", ""),
        "JSON": " ".join(str(value) for value in decided.values()),
        "Python": f"{loaded.configuration} {loaded.reason} {loaded.runner_up}",
    }
    return {where: " ".join(text.split()) for where, text in texts.items()}


def missing(texts: Mapping[str, str], *words: str) -> list[tuple[str, str]]:
    return [(where, word) for where, text in texts.items() for word in words if word not in text]


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit):
        main(arguments)
    return capsys.readouterr().out


def newest() -> Path:
    return max(Path("reports").iterdir(), key=lambda path: path.stat().st_mtime_ns)


def kept(path: Path) -> Decision:
    return Decision.model_validate_json(RunFolder(path).decision.read_bytes())


@pytest.mark.parametrize("arguments", [TUNE, PLAN, WITH_BATCH, RELIEVED], ids=["tune", "plan", "batch", "relieved"])
def test_the_decision_of_a_prediction_is_the_same_wherever_it_is_shown(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    out = " ".join(called(capsys, *arguments).split())
    decision = kept(newest())
    name, rival = known(decision.configuration), decision.runner_up or ""
    assert missing({"terminal": out}, ": choose ", f"{name} Memory: ", *decision.reason.split("; "), rival) == []
    assert missing(shown(newest()), name, decision.reason, rival) == []


@pytest.mark.parametrize("arguments", [TUNE, PLAN], ids=["tune", "plan"])
def test_the_command_s_document_has_the_decision_that_is_kept(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    document = json.loads(called(capsys, *arguments, "--json"))
    decision = kept(newest())
    assert [document[key] for key in ("best", "reason", "runner_up")] == [
        decision.configuration,
        decision.reason,
        known(decision.runner_up),
    ]
    assert decision.configuration in {one["configuration"] for one in document["configurations"]}


def test_python_s_calls_return_the_decision_that_is_kept() -> None:
    asked: dict[str, Any] = {"gpus": 8, "gpu": "a100-40", "host_memory": "1TB", "evidence": "formula"}
    made = [api.plan(model="llama-7b", **asked), api.tune("llama-7b", **asked, stages=[1, 2], global_batch=8)]
    kept_with_runs = [kept(one.path) for one in made]
    assert [one.decision for one in made] == kept_with_runs
    assert [known(one.best).name for one in made] == [one.configuration for one in kept_with_runs]
    assert [(one.reason, one.runner_up) for one in made] == [(one.reason, one.runner_up) for one in kept_with_runs]
    assert [text for one in made for text in (one.reason, known(one.runner_up)) if text not in repr(one)] == []


def test_plan_and_tune_take_a_gain_by_the_same_rule() -> None:
    """Of the cells that both show, neither leaves one that is expected to be faster by more than a per cent."""
    asked: dict[str, Any] = {"gpus": 8, "gpu": "a100-80", "host_memory": "1TB", "evidence": "formula"}
    for made in (api.plan(model="llama-7b", **asked), api.tune("llama-7b", **asked, stages=[1, 2], global_batch=8)):
        times = [known(one.expected_step_s) for one in made.predictions if one.row.has_room]
        assert known(known(made.best).expected_step_s) <= 1.01 * min(times)


def test_a_measured_run_is_decided_alike_wherever_it_is_shown(tmp_path: Path) -> None:
    path = write_run(tmp_path / "measured", sample_trials()).path
    [decision] = api.load(str(path)).decisions
    assert not RunFolder(path).decision.exists()
    assert missing(shown(path), known(decision.configuration), decision.reason, known(decision.runner_up)) == []
    assert decision.reason == "least device memory of 2 equally fast trials, 12.22 GiB in steps"


def test_a_run_without_a_kept_decision_is_decided_by_the_same_rule(capsys: pytest.CaptureFixture[str]) -> None:
    called(capsys, *PLAN)
    decision = kept(newest())
    RunFolder(newest()).decision.unlink()
    assert missing(shown(newest()), known(decision.configuration), decision.reason, known(decision.runner_up)) == []


def test_a_decision_is_out_of_date_once_the_run_has_other_trials(capsys: pytest.CaptureFixture[str]) -> None:
    called(capsys, *PLAN)
    decision = kept(newest())
    other = decision.model_copy(update={"configuration": "zero9", "reason": "it was stored"})
    RunFolder(newest()).decision.write_text(other.model_dump_json())
    assert api.load(str(newest())).decisions == [other]
    RunFolder(newest()).decision.write_text(other.model_copy(update={"judged": other.judged[1:]}).model_dump_json())
    [made] = api.load(str(newest())).decisions
    assert (made.configuration, made.reason) == (decision.configuration, decision.reason)


def test_the_page_holds_the_others_against_the_decision_that_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    called(capsys, *PLAN)
    decision, run = kept(newest()), load_run(newest())
    [zero2] = [one for one in run.trials() if one.spec.strategy == "zero2" and not one.spec.offloaded_to]
    assert zero2.spec.trial_id != decision.trial_id
    other = decision.model_copy(update={"trial_id": zero2.spec.trial_id, "configuration": "zero2"})
    RunFolder(newest()).decision.write_text(other.model_dump_json())
    assert "compared with zero2" in page_html(run_figures([load_run(newest())]), [])
