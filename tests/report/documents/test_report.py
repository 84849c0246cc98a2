"""The report for a pull request: what it says, what marks a prediction, what nothing from a run can do, its name."""

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

from tests.report.figures.compare.runs import environment, lay_out
from tests.report.sample_predictions import foretelling
from tests.report.sample_run import SampleTrial, completed_trial, cpu_trials, model, sample_trials, spec, trial_record
from zerobench.common.vocabulary import Category, Place, Status
from zerobench.records.folder import RunFolder
from zerobench.records.store import load_run
from zerobench.report.documents.markdown import MOST_ROWS
from zerobench.report.documents.report import kept_name, markdown_report
from zerobench.report.export.run_frames import RunFrames, run_frames

RENDERER = MarkdownIt("gfm-like")
SWEEP = {"name": "sample", "axes": {"model": "m"}}
CPU = {**environment(), "gpus": [], "topology": [], "driver": {"version": None}}


def frames_of(
    path: Path, trials: Sequence[SampleTrial], name: str = "sample_20260102-030405", **changed: Any
) -> RunFrames:
    """The frames of a run of `trials`; `changed` replaces its sweep or its environment."""
    run = lay_out(path, name, trials, changed.get("recorded"))
    RunFolder(run).sweep.write_text(yaml.safe_dump(changed.get("sweep", SWEEP), sort_keys=False))
    return run_frames([load_run(run)])


def table_after(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table under `heading`, its headers first."""
    section = re.split(r"^## ", text.partition(f"## {heading}\n")[2], flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines if "---" not in line]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> RunFrames:
    return frames_of(tmp_path_factory.mktemp("sample"), sample_trials())


def test_it_says_what_a_submission_must_say(sample: RunFrames) -> None:
    text = markdown_report(sample)
    assert text.startswith("# sample on H100 SXM\n")
    headings = re.findall(r"^## (.*)", text, re.MULTILINE)
    assert headings == [
        "Memory by category",
        "Host memory per parameter",
        "Throughput",
        "Loss parity",
        "Outcomes",
        "Notes",
        "Hardware",
        "Versions and date",
        "Configuration",
        "How to reproduce",
    ]
    for said in (
        "- GPUs: 8 x NVIDIA H100 80GB HBM3, 80.0 GiB each",
        "- links between GPUs: 1 pairs: 18 NVLinks through nvswitch, PCIe NODE",
        "| deepspeed | 0.19.7 |",
        "| NVIDIA driver | 580.65.06 |",
        "| date | 2026-01-02 03:00 UTC |",
        "| zerobench commit | 0123456789ab |",
        "pip install torch==2.12.0 deepspeed==0.19.7",
        "```yaml\nname: sample\naxes:\n  model: m\n```",
    ):
        assert said in text


def test_the_categories_of_a_row_add_up_to_its_peak(sample: RunFrames) -> None:
    headers, *rows = table_after(markdown_report(sample), "Memory by category")
    begin, end = headers.index("parameters, GiB"), headers.index("peak, GiB")
    assert len(rows) == 9
    for row in rows:
        parts = [float(cell) for cell in row[begin:end]]
        assert sum(parts) == pytest.approx(float(row[end]), abs=0.005 * len(parts) + 0.005)


def test_throughput_and_outcomes_are_those_of_the_trials(sample: RunFrames) -> None:
    text = markdown_report(sample)
    headers, *rows = table_after(text, "Throughput")
    zero1 = dict(zip(headers, next(row for row in rows if row[0] == "zero1"), strict=True))
    assert (zero1["evidence"], zero1["step, ms"]) == ("measured", "231.1")  # 218 ms, the middle step, the slowest rank
    assert zero1["tokens/s"] == f"{64 * 1024 / (0.218 * 1.06):,.0f}"
    assert "12 trials: 9 completed, 1 out of device memory, 1 timeout, 1 skipped." in text
    outcomes = {row[0]: row[2:] for row in table_after(text, "Outcomes")[1:]}
    assert outcomes["zero0 mb64"] == [
        "out of device memory",
        "1 min 36 s",
        "the device ran out of memory (rank 2, backward, step 1, requested 12.00 GiB, free 3.00 GiB)",
    ]


def test_what_is_not_to_be_believed_is_said(sample: RunFrames) -> None:
    text = markdown_report(sample)
    assert "- zero2 reduce_bucket=5e8: throughput is void: 3 allocator retries" in text
    assert "- zero1 mb4 ga2: losses differ from the reference by 0.31" in text


def test_predictions_are_marked_in_every_row_and_their_errors_listed(tmp_path: Path) -> None:
    real = completed_trial(spec("zero1", gpus_per_node=1))
    text = markdown_report(frames_of(tmp_path, [real, foretelling(real, "solo", 1.1)]))
    rows = table_after(text, "Memory by category")[1:]
    assert [row[1] for row in rows] == ["measured", "predicted (solo on H100 SXM)"]
    headers, *errors = table_after(text, "Predicted against measured")
    assert [row[headers.index("error")] for row in errors] == [f"+{100 * largest_share_of_activations(real) / 10:.2f}%"]
    assert "- Predicted rows: not measured." in text


def test_a_report_of_predictions_alone_says_so_in_its_title(tmp_path: Path) -> None:
    real = completed_trial(spec("zero1", gpus_per_node=1))
    frames = frames_of(tmp_path, [foretelling(real, "simulated", 1.0, gpu="h200")], recorded=CPU)
    text = markdown_report(frames)
    assert text.startswith("# sample on H200 SXM, predicted\n")
    assert "- emulated or simulated: H200 SXM (139.8 GiB)" in text
    assert table_after(text, "Memory by category")[1][1] == "predicted (simulated on H200 SXM)"
    assert kept_name(frames) == "sample_h200_20260102.md"


def largest_share_of_activations(trial: SampleTrial) -> float:
    """What activations are of the device's peak, in the phase in which they are most of it."""
    rows = [row for row in trial.ranks[0].memory if row.place is Place.DEVICE]
    sizes = {(row.step, row.phase, row.category): row.at_peak_bytes or 0 for row in rows}
    phases = {(row.step, row.phase) for row in rows}
    return max(sizes.get((*when, Category.ACTIVATIONS), 0) / sizes[(*when, Category.TOTAL)] for when in phases)


def test_a_run_on_a_cpu_says_so_and_lacks_what_only_gpus_have(tmp_path: Path) -> None:
    frames = frames_of(tmp_path, cpu_trials(), recorded=CPU)
    text = markdown_report(frames)
    assert text.startswith("# sample on CPU ranks\n")
    assert "- GPUs: none\n" in text
    assert "NVIDIA driver" not in text
    assert kept_name(frames) == "sample_cpu_20260102.md"


EVIL = "<img src=x onerror=alert(1)> [a](http://evil.example) ![b](http://evil.example/x) | `c` @octocat #1 :tada:\n# h"


def test_values_from_a_run_never_become_html_links_pictures_or_mentions(tmp_path: Path) -> None:
    asked = spec("zero1", gpus_per_node=1, model=model(EVIL))
    trial = completed_trial(asked)
    rank = trial.ranks[0].model_copy(update={"notes": [EVIL], "device_name": EVIL, "hostname": EVIL})
    failed = trial_record(spec("zero2"), Status.CRASH, reason=EVIL)
    recorded = {**environment(torch=EVIL, **{EVIL: EVIL}), "hostname": EVIL, "gpus": [{"name": EVIL}]}
    recorded["git"] = {"zerobench": {"commit": EVIL, "dirty": True}}
    trials = [SampleTrial(asked, trial.record, [rank]), SampleTrial(spec("zero2"), failed, [])]
    sweep = {"name": EVIL, "description": f"```\n{EVIL}", "axes": {EVIL: [EVIL]}}
    text = markdown_report(frames_of(tmp_path, trials, sweep=sweep, recorded=recorded))
    assert acting(text) == []
    assert text.count("onerror") >= 8, "the values are shown"
    assert "; alert" not in text.partition("```sh")[2].partition("```")[0]
    assert EVIL[:5] not in text.partition("```sh")[2].partition("```")[0]


def acting(text: str) -> list[str]:
    """Tags that a report does not have itself, and what GitHub acts on, outside of code."""
    page = RENDERER.render(text)
    tags = set(re.findall(r"<([a-z][\w-]*)", page)) - {
        *("h1", "h2", "p", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "code", "pre")
    }
    outside = re.sub(r"<(code|pre)\b.*?</\1>", "", page, flags=re.DOTALL)
    seen = html.unescape(re.sub(r"<[^>]*>", "", outside))
    return [*tags, *re.findall(r"@\w+|#\d+|:tada:|://\w", seen)]


def test_several_runs_are_one_report_with_the_setting_of_each(tmp_path: Path) -> None:
    trials = [completed_trial(spec("zero1", gpus_per_node=1))]
    runs = [lay_out(tmp_path, name, trials, environment(torch=name[:3])) for name in ("aaa_20260102-030405", "bbb")]
    for run, sweep in zip(runs, ("one", "two"), strict=True):
        RunFolder(run).sweep.write_text(f"name: {sweep}\n")
    frames = run_frames([load_run(run) for run in runs])
    text = markdown_report(frames)
    assert "## Versions and date of aaa_20260102-030405" in text
    assert "## Versions and date of bbb" in text
    assert kept_name(frames) == "one-two_h100_20260102.md"


def test_a_long_report_counts_the_rows_that_it_leaves_out(tmp_path: Path) -> None:
    asked = [spec("zero1", gpus_per_node=1, micro_batch_size=1 + index) for index in range(MOST_ROWS + 20)]
    trials = [SampleTrial(one, trial_record(one, Status.CRASH, reason="boom"), []) for one in asked]
    text = markdown_report(frames_of(tmp_path, trials))
    assert len(table_after(text, "Outcomes")) == 1 + MOST_ROWS
    assert "20 more rows on the page" in text


@pytest.mark.parametrize(
    ("sweep", "name", "device", "expected"),
    [
        ("zero-stages", "zero-stages_20261121-101500", "NVIDIA H200", "zero-stages_h200_20261121.md"),
        ("zero stages/é", "x_20261121-101500", "NVIDIA A100-SXM4-80GB", "zero-stages-__a100_20261121.md"),
        ("s", "renamed", "NVIDIA GeForce RTX 4090", "s_rtx-4090_20260102.md"),
        ("../../etc", "renamed", "NVIDIA H100 80GB HBM3", "-..-etc_h100_20260102.md"),
    ],
)
def test_a_kept_report_is_named_by_sweep_gpu_and_date(
    tmp_path: Path, sweep: str, name: str, device: str, expected: str
) -> None:
    trial = completed_trial(spec("zero1", gpus_per_node=1)).with_ranks(device_name=device)
    frames = frames_of(tmp_path, [trial], name, sweep={"name": sweep})
    assert kept_name(frames) == expected
    assert Path(expected).name == expected


def test_a_run_without_an_environment_has_a_report_and_a_name(tmp_path: Path) -> None:
    frames = frames_of(tmp_path, [], "renamed", recorded={})
    assert "Versions not recorded." in markdown_report(frames)
    assert kept_name(frames) == "sample_cpu_undated.md"
    assert json.loads((tmp_path / "renamed" / "environment.json").read_text()) == {}
