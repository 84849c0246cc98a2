"""zerobench from Python: the same answers as the command's, as objects."""

import gc
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import zerobench
from tests.tools.imports import ROOT
from tests.tools.known import known
from zerobench.app.search.plan_request import request_of
from zerobench.common.errors import UserError
from zerobench.report.export.tidy_tables import write_tables

CLUSTER: dict[str, Any] = {"gpus": 8, "gpu": "h200", "host_memory": "1TB", "evidence": "formula"}


def test_a_plan_is_that_of_the_command(tmp_path: Path) -> None:
    plan = zerobench.plan(model="llama-7b", **CLUSTER, reports=tmp_path / "reports")
    words = ["--model", "llama-7b", "--gpus", "8", "--gpu", "h200", "--host-memory", "1TB", "--formula"]
    command = [sys.executable, "-m", "zerobench", "plan", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    assert plan.best is not None
    assert f": choose {plan.best.name}\n" in said
    assert plan.reason in " ".join(said.split())
    assert plan.best.fits
    table = plan.table()
    assert list(table.index) == [one.name for one in plan.predictions]
    assert not table.loc["zero0", "fits"]
    assert table.loc[plan.best.name, "needed_bytes"] == plan.best.needed_bytes
    assert plan._repr_html_().startswith("<p><b>llama-7b on 8 x H200 SXM: choose ")


def test_a_prediction_of_ones_own_configuration_adds_up(tmp_path: Path) -> None:
    config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}
    one = zerobench.predict("llama-7b", config, **CLUSTER, micro_batch_size=4, reports=tmp_path)
    (tmp_path / "own.json").write_text(json.dumps(config))
    same = zerobench.predict("llama-7b", tmp_path / "own.json", **CLUSTER, micro_batch_size=4, reports=tmp_path)
    assert one.by_category == same.by_category
    assert sum(one.by_category.values()) <= known(one.peak_bytes) < (one.needed_bytes or 0)
    low, high = one.expected_step_interval_s or (0.0, 0.0)
    assert low < (one.expected_step_s or 0.0) < high
    assert one.expected_tokens_per_s == pytest.approx(8 * 4 * 2048 / (one.expected_step_s or 0.0))


def test_a_prediction_leaves_nothing_on_disk_unless_it_is_told_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
    one = zerobench.predict("gpt2-125m", config, **CLUSTER, sequence_length=512)
    shown = repr(one) + one._repr_html_() + one.table().to_string()
    with pytest.raises(UserError, match="reduce_bucket_size"):
        zerobench.predict("gpt2-125m", {"zero_optimization": {"reduce_bucket_sise": 1}}, **CLUSTER)
    kept = zerobench.predict("gpt2-125m", config, **CLUSTER, sequence_length=512, reports=tmp_path / "kept")
    assert kept.by_category == one.by_category != {}
    assert "zero2" in shown
    del one
    gc.collect()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_run_is_loaded_with_its_tables(tmp_path: Path) -> None:
    made = zerobench.plan(model="gpt2-125m", stages=[1, 3], sequence_length=1024, **CLUSTER, reports=tmp_path)
    run = zerobench.load(reports=tmp_path)
    assert run.path == made.path
    assert set(run.trials["strategy"]) == {"zero1", "zero3"}
    assert {"category", "live_bytes"} <= set(run.memory.columns)
    write_tables(run.run)
    on_disk = pd.read_csv(run.path / "trials.csv")
    assert list(run.trials.columns) == list(on_disk.columns)
    ours, theirs = (frame["expected_step_s"].dropna().tolist() for frame in (run.trials, on_disk))
    assert ours == pytest.approx(theirs)
    assert ours


def test_a_sweep_runs_from_python_and_its_charts_draw_themselves(tmp_path: Path) -> None:
    sets = ["evidence=formula"]
    run = zerobench.run("predicted-7b", sets=sets, only=["strategy=zero2,zero3"], reports=tmp_path)
    assert dict(zip(run.trials["strategy"], run.trials["status"], strict=True)) == {
        "zero2": "completed",
        "zero3": "completed",
    }
    assert run.charts
    for chart in run.charts.values():
        assert "<svg" in chart._repr_html_()
        assert not chart.table.empty
        assert re.findall(r"var\(--|#hatch", chart.altair.to_json()) == []
        assert "vega" in chart.altair._repr_mimebundle_()["text/html"]
    used = {name for chart in run.charts.values() for name in re.findall(r"var\((--[\w-]+)", chart._repr_html_())}
    shown = next(iter(run.charts.values()))._repr_html_()
    assert [name for name in used if f"{name}:" not in shown] == []


def test_what_is_wrong_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'llama-7b'"):
        zerobench.plan(model="lama-7b", **CLUSTER, reports=tmp_path)
    with pytest.raises(UserError, match="reduce_bucket_size"):
        zerobench.predict("llama-7b", {"zero_optimization": {"reduce_bucket_sise": 1}}, **CLUSTER, reports=tmp_path)
    with pytest.raises(UserError):
        zerobench.load(reports=tmp_path / "nowhere")


def test_importing_zerobench_imports_nothing_heavy() -> None:
    heavy = {"torch", "transformers", "pandas", "deepspeed", "rich"}
    code = f"import sys, zerobench; print(sorted({heavy} & set(sys.modules)))"
    said = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "[]\n"


def test_tuning_gives_the_fastest_of_what_was_tried(tmp_path: Path) -> None:
    found = zerobench.tune("llama-7b", gpus=8, gpu="h100", global_batch=64, evidence="formula", reports=tmp_path)
    times = [one.expected_step_s for one in found.predictions if one.fits and one.expected_step_s is not None]
    assert known(known(found.best).expected_step_s) <= 1.01 * min(times)


def test_adapters_are_asked_for_in_the_words_of_the_command_in_each_call() -> None:
    for call in (zerobench.plan, zerobench.tune, zerobench.predict):
        assert inspect.signature(call).parameters["lora"].annotation == "int | str | None"
    found = {request_of({"lora": asked}).lora for asked in (16, "16")}
    assert found == {"16"}
    assert request_of({"lora": "16-nf4"}).lora == "16-nf4"


def test_each_argument_of_a_prediction_has_its_name_and_type() -> None:
    plan, predict = (inspect.signature(call).parameters for call in (zerobench.plan, zerobench.predict))
    assert {name for name, one in predict.items() if one.kind is inspect.Parameter.VAR_KEYWORD} == set()
    assert set(predict) == set(plan) - {"stages"}  # which its configuration says
    own = {"ds_config", "reports"}  # a prediction keeps its run only where it is told to
    assert all(predict[name].annotation == plan[name].annotation for name in set(predict) - own)


def test_what_the_package_gives_is_what_type_checkers_are_told_and_no_module_of_it_hides_it() -> None:
    stub = ROOT / "zerobench" / "__init__.pyi"
    told = {
        name: module for module, name in re.findall(r"^from (\S+) import (\w+) as \2$", stub.read_text(), re.MULTILINE)
    }
    assert {"plan", "tune", "predict", "load", "run", "track", "TrainerCallback"} == set(told)
    for name, module in told.items():
        assert not [path for path in (ROOT / "zerobench").iterdir() if path.stem == name]
        assert getattr(zerobench, name).__module__ == module
