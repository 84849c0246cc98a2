"""Runs as one JSON document: every trial with its peaks, and no number that JSON does not have."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.report.sample_run import RUN_ID, completed_trial, sample_trials, spec, write_run
from tests.tools.known import known
from zerobench.records.store import load_run
from zerobench.report.export import schema
from zerobench.report.export.frames_document import json_document, json_rows
from zerobench.report.export.run_frames import RunFrames, run_frames
from zerobench.report.figures.capacity import device_need


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> RunFrames:
    folder = tmp_path_factory.mktemp("runs") / RUN_ID
    write_run(folder, sample_trials(), samples=False)
    return run_frames([load_run(folder)])


def strict(text: str) -> Any:
    """The document as a reader sees it that takes no NaN."""

    def refuse(word: str) -> None:
        pytest.fail(f"the document holds {word}")

    return json.loads(text, parse_constant=refuse)


def test_each_trial_has_its_summary_and_the_categories_of_its_peak(frames: RunFrames) -> None:
    document = strict(json_document(frames))
    assert [trial["label"] for trial in document["trials"]] == list(frames.trials["label"])
    for trial in document["trials"]:
        assert set(trial) == {*schema.SUMMARY, "peaks", "ranks", "notes"}
        mine = frames.peaks[frames.peaks["trial_id"] == trial["trial_id"]]
        assert sum(row["bytes"] for row in trial["peaks"]) == mine["bytes"].sum()
        assert len(trial["ranks"]) == (frames.ranks["trial_id"] == trial["trial_id"]).sum()


def test_bytes_are_whole_numbers_and_what_is_not_available_is_null(frames: RunFrames) -> None:
    trials = {trial["label"]: trial for trial in strict(json_document(frames))["trials"]}
    assert isinstance(trials["zero1"]["device_peak_bytes"], int)
    assert trials["zero0 mb64"]["device_peak_bytes"] is None
    assert trials["zero0 mb64"]["peaks"] == []


def test_a_trials_needs_are_those_that_its_fit_is_judged_by(frames: RunFrames) -> None:
    trials = {trial["label"]: trial for trial in strict(json_document(frames))["trials"]}
    need = known(device_need(next(trial for trial in sample_trials() if trial.spec.strategy == "zero1")))
    assert trials["zero1"]["device_needed_bytes"] == need.total_bytes > trials["zero1"]["device_peak_bytes"]
    assert trials["zero0 mb64"]["device_needed_bytes"] is None


def test_rows_are_written_as_jsons_own_writer_would() -> None:
    """A column at a time, and to the character: integers, fractions, words with marks of JSON, what is not there."""
    odd = ['say "no"\n', "50 % \\ é\u2028", None, "[1,\t2]"]
    kinds = {"50%": schema.INTEGER, "said": schema.STRING, "s": schema.FLOAT, "is": schema.BOOLEAN}
    columns = [1, 2**60, None, 0], odd, [10**16, math.inf, 1e-7, None], [True, None, False, True]
    given = [dict(zip(kinds, cells, strict=True)) for cells in zip(*columns, strict=True)]
    rows = [
        {"50%": 1, "said": odd[0], "s": 1e16, "is": True},
        {"50%": 2**60, "said": odd[1], "s": None, "is": None},
        {"50%": None, "said": None, "s": 1e-7, "is": False},
        {"50%": 0, "said": odd[3], "s": None, "is": True},
    ]
    assert list(json_rows(kinds, given, depth=2)) == [json.dumps(row, indent=1).replace("\n", "\n  ") for row in rows]
    assert list(json_rows(kinds, [], depth=2)) == []


def test_a_loss_that_ran_away_is_null_and_never_a_bare_word(tmp_path: Path) -> None:
    trial = completed_trial(spec("zero1", gpus_per_node=1)).with_ranks(losses=[10.8, math.nan, math.inf])
    run = write_run(tmp_path / RUN_ID, [trial], samples=False)
    run.sweep.write_text("name: x\naxes: {learning_rate: [.nan, .inf, 1.5]}\nsince: 2026-01-02\n")
    document = strict(json_document(run_frames([load_run(run.path)])))
    assert document["trials"][0]["loss_last"] is None
    assert document["runs"][0]["sweep"] == {
        "name": "x",
        "axes": {"learning_rate": [None, None, 1.5]},
        "since": "2026-01-02",
    }


def test_the_document_is_written_as_python_writes_json_in_lines_of_one_more_place(frames: RunFrames) -> None:
    text = json_document(frames)
    assert text == json.dumps(json.loads(text), indent=1) + "\n"
    assert any(not trial["peaks"] for trial in json.loads(text)["trials"])
    without = dataclasses.replace(frames, figures=[])
    assert '"trials": [],\n' in json_document(without)
