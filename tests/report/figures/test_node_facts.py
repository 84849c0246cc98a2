"""Runs on several nodes: whose environment stands for the run, and that the odd node is named in every view."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.report.figures.compare.runs import environment
from tests.report.sample_run import completed_trial, failed_trial, spec, write_run
from tests.report.two_nodes import ASKED, two_node_trial, write_two_nodes
from tests.tools.printed import shown_run
from zerobench.common.errors import UserError
from zerobench.records.records import Failure
from zerobench.records.store import Run, load_run
from zerobench.report.documents.page import page_html
from zerobench.report.documents.report import markdown_report
from zerobench.report.explain.trial import explain
from zerobench.report.export.frames_document import json_document
from zerobench.report.export.run_frames import run_frames
from zerobench.report.figures.node_facts import node_differences, node_lines

LOGIN = {"captured_at_s": 1_767_322_000.0, "hostname": "login-1", "versions": {"torch": None}, "gpus": []}


def node(name: str, **changes: Any) -> dict[str, Any]:
    """What node `name` recorded."""
    return {"node": name, **environment(), "hostname": name, **changes}


NODES = {
    "a-cpu": {"node": "a-cpu", **LOGIN, "hostname": "a-cpu"},
    "gpu-1": node("gpu-1"),
    "gpu-2": node("gpu-2"),
    "gpu-3": node("gpu-3", driver={"version": "535.1", "cuda_version": "13.0"}),
}


def run_on(path: Path, nodes: dict[str, dict[str, Any]]) -> Run:
    """A run of a trial on two nodes, submitted from a login node, on `nodes`."""
    run = write_two_nodes(path, two_node_trial(nodes=["gpu-1", "gpu-2"], job="123_4.2"))
    run.environment.write_text(json.dumps(LOGIN))
    run.nodes.mkdir()
    for name, document in nodes.items():
        (run.nodes / f"{name}.json").write_text(json.dumps(document))
    return load_run(path)


def test_the_environment_is_that_of_the_first_node_with_gpus_and_not_of_what_submitted_the_run(tmp_path: Path) -> None:
    run = run_on(tmp_path / "run", NODES)
    assert run.environment == NODES["gpu-1"]
    assert run.submitted_from == LOGIN
    assert run.nodes == NODES
    assert run.began_at_s == LOGIN["captured_at_s"]


def test_a_run_that_recorded_no_nodes_has_the_environment_of_its_machine(tmp_path: Path) -> None:
    run = run_on(tmp_path / "run", {})
    assert (run.environment, run.submitted_from, run.nodes) == (LOGIN, None, {})
    assert node_lines(run) == []


def test_a_node_that_could_not_be_recorded_stands_for_nothing_and_is_named(tmp_path: Path) -> None:
    lost = {"node": "gpu-0", "captured_at_s": 1.0, "fault": "no route to host"}
    assert run_on(tmp_path / "one", {"gpu-0": lost}).environment == LOGIN
    run = run_on(tmp_path / "run", {"gpu-0": lost, "gpu-1": NODES["gpu-1"]})
    assert run.environment == NODES["gpu-1"]
    assert node_differences(run.nodes) == ["gpu-0 could not be recorded: no route to host"]


def test_a_torn_document_of_a_node_is_an_error_that_names_it(tmp_path: Path) -> None:
    run = run_on(tmp_path / "run", NODES)
    (run.folder.nodes / "gpu-2.json").write_text('{"node": "gp')
    with pytest.raises(UserError, match=r"nodes/gpu-2\.json: torn or corrupt"):
        _ = load_run(run.folder.path).nodes


def test_nodes_that_differ_in_nothing_but_names_and_megabytes_do_not_differ() -> None:
    machine = environment()["machine"]
    less = node("b", machine={**machine, "memory_bytes": machine["memory_bytes"] - 5_000_000}, variables={"A": "1"})
    assert node_differences({"a": node("a"), "b": less}) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"driver": {"version": "535.1", "cuda_version": "13.0"}}, "driver: 535.1 on d; 580.65.06 on the other 3"),
        ({"gpus": environment()["gpus"][:7]}, "GPUs: 7 x NVIDIA H100 80GB HBM3 on d; 8 x NVIDIA H100 80GB HBM3"),
        ({"machine": {**environment()["machine"], "kernel": "5.15.0"}}, "kernel: 5.15.0 on d; 6.8.0 on the other 3"),
        ({"machine": {**environment()["machine"], "memory_bytes": 2**40}}, "host memory: 1.0 TiB on d; 2.0 TiB on"),
        ({"versions": {**environment()["versions"], "torch": "2.9.0"}}, "torch: 2.9.0 on d; 2.12.0 on the other 3"),
        ({"topology": []}, "links between GPUs: none on d; 1 pairs: 18 NVLinks through nvswitch, PCIe NODE on the"),
    ],
)
def test_each_fact_that_is_other_on_one_node_is_a_line_that_names_the_node(
    change: dict[str, Any], sentence: str
) -> None:
    nodes = {name: node(name, **(change if name == "d" else {})) for name in "cdab"}
    [found] = node_differences(nodes)
    assert found.startswith(sentence)


def test_every_view_counts_the_nodes_and_names_the_odd_one(tmp_path: Path) -> None:
    run = run_on(tmp_path / "run", {name: NODES[name] for name in ("gpu-1", "gpu-2", "gpu-3")})
    frames = run_frames([run])
    views = {
        "terminal": shown_run(run.folder.path, 140),
        "markdown": markdown_report(frames),
        "page": page_html(frames, []),
    }
    for view, text in views.items():
        assert re.search("3( nodes)?: gpu-1, gpu-2, gpu-3", text), view
        assert "driver: 535.1 on gpu-3; 580.65.06 on the other 2" in text, view
        assert "login-1" in text, view
    assert "on: 2 x NVIDIA H100 80GB HBM3; hosts gpu-1, gpu-2" in views["terminal"]
    assert "NVML on gpu-2: a fault of node 1" in views["terminal"]
    [told] = json.loads(json_document(frames))["runs"]
    assert (told["nodes"], told["submitted_from"]) == (run.nodes, LOGIN)


def test_the_nodes_and_the_job_of_a_trial_are_told_with_its_details(tmp_path: Path) -> None:
    run = run_on(tmp_path / "run", {"gpu-1": NODES["gpu-1"]})
    first = next(topic for topic in explain(run, ASKED.trial_id) if "trial" in topic.figures)
    assert "ran on gpu-1, gpu-2, by Slurm's job 123_4.2" in [line.text for line in first.lines]
    assert first.figures["trial"] | {"nodes": ["gpu-1", "gpu-2"], "job": "123_4.2"} == first.figures["trial"]
    page = page_html(run_frames([run]), [])
    assert "gpu-1, gpu-2" in page
    assert "123_4.2" in page


def test_a_trial_that_failed_in_a_job_names_the_job(tmp_path: Path) -> None:
    failed = failed_trial(spec("zero2", gpus_per_node=1), Failure(message="boom")).with_record(job="77_1")
    trials = [completed_trial(spec("zero1", gpus_per_node=1)), failed]
    run = write_run(tmp_path / "run", trials, samples=False)
    assert "77_1" in shown_run(run.path, 140)


def test_names_of_nodes_are_never_markup_and_never_escapes(tmp_path: Path) -> None:
    evil = {
        "[bold]x\x1b[2J": node("a"),
        "<script>y": node("b", driver={"version": "[red]\x07", "cuda_version": "13.0"}),
    }
    run = run_on(tmp_path / "run", evil)
    assert all("\x1b" not in line and "\x07" not in line for line in node_lines(run))
    page = page_html(run_frames([run]), [])
    assert "<script>y" not in page
    assert "[bold]x" in shown_run(run.folder.path, 140)
