"""Memory held at the failed allocation is a table wherever a run is shown, like host memory for each parameter."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tests.report.compare.runs import lay_out
from tests.report.explain.runs import BUCKETS, OFFLOADED, named
from tests.report.sample_run import GIB, SampleTrial, failed_trial, spec, trial_record
from zerobench.records import Category, Failure, Standing
from zerobench.report.frames.run_frames import run_frames
from zerobench.report.markdown.report import markdown_report
from zerobench.report.page.assemble import page_html
from zerobench.report.render.terminal import Console
from zerobench.report.tables.host_parameters import TITLE as HOST
from zerobench.report.tables.standing import TITLE as STOOD
from zerobench.report.terminal.show import show_run
from zerobench.store import load_run

HELD = Standing(
    allocated_bytes=60 * GIB,
    reserved_bytes=64 * GIB,
    largest_free_bytes=GIB,
    by_category={Category.ACTIVATIONS: 45 * GIB, Category.PARAMETERS: 15 * GIB, Category.INPUTS: 1},
    by_module={"LlamaMLP": 30 * GIB},
    by_site={"<b>transformers/mlp.py:forward</b>": 24 * GIB},
)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    path = tmp_path_factory.mktemp("run")
    refused = failed_trial(spec("zero2", gpus_per_node=1), Failure(message="out of memory", standing=HELD))
    known = named(BUCKETS, OFFLOADED).trial
    offloads = SampleTrial(known.spec, trial_record(known.spec), list(known.ranks))
    run = lay_out(path, "sample_20260102-030405", [refused, offloads])
    frames = run_frames([load_run(run)])
    screen = io.StringIO()
    console = Console(file=screen, width=140)
    show_run(Path(run), console)
    terminal = screen.getvalue()
    return {"terminal": terminal, "markdown": markdown_report(frames), "page": page_html(frames, [])}


@pytest.mark.parametrize("where", ["terminal", "markdown", "page"])
def test_each_way_of_showing_a_run_has_both_tables(shown: dict[str, str], where: str) -> None:
    text = shown[where]
    of_host = "Host memory in bytes per model parameter" if where == "terminal" else HOST
    assert of_host in text
    assert "fp32 masters" in text
    _, _, stood = text.rpartition(STOOD)
    free = ("reserved but unallocated", "4.00", "6.7", "of it in one block", "1.00", "1.7")
    for said in ("activations", "45.00", "75.0", "LlamaMLP", "30.00", "24.00", "40.0", *free):
        assert said in stood, said
    assert "inputs" not in stood.partition("allocation site")[0]
    assert where == "terminal" or "<b>transformers" not in stood
