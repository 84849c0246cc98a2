"""No text of a run, whoever wrote it, is a formula in a spreadsheet: each CSV export, with hostile values."""

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.csv_rows import as_csv, from_csv
from benchmarks.versions import matrix
from benchmarks.versions.cells import cells
from tests.report.sample_run import completed_trial, failed_trial, model, sample_trials, spec, write_run
from tests.tools.imports import ROOT
from zerobench.records.records import Failure
from zerobench.records.store import load_run
from zerobench.report.export.joined_tables import write_csv
from zerobench.report.export.run_frames import run_frames
from zerobench.report.export.tidy_tables import read_frame, write_tables
from zerobench.report.figures.energy import energies
from zerobench.report.words.cells import STARTS, as_cell, as_text, escaped_row

HOSTILE = [f"{start}cmd|' /C calc'!A0" for start in STARTS] + ["'=1+1", "''@SUM(A1)", "-2+3", "a\r=1+1"]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_that_a_spreadsheet_would_run_is_escaped_and_read_back(text: str) -> None:
    assert as_cell(text) == (text if text[0] == "a" else f"'{text}")
    assert as_text(as_cell(text)) == text


@pytest.mark.parametrize("value", ["a=1", "llama-7b", "it's", "'quoted'", "", -1, -2.5, None, True])
def test_other_texts_and_all_numbers_stay_as_they_are(value: object) -> None:
    assert as_cell(value) == value
    assert not isinstance(value, str) or as_text(value) == value


@given(st.text(alphabet=[*STARTS, "'", "a", "1"]))
def test_every_text_is_read_back_as_it_was(text: str) -> None:
    assert as_text(as_cell(text)) == text
    assert as_cell(text)[:1] not in set(STARTS)


def hostile_run(path: Path, text: str) -> Path:
    """A run whose names, reasons and devices are all `text`."""
    asked = spec("zero1", gpus_per_node=2, model=model(text))
    completed = completed_trial(asked)
    for rank in range(2):
        completed = completed.with_rank(rank, device_name=text, hostname=text)
    failed = failed_trial(spec("zero2", gpus_per_node=1, ds_config_file=text), Failure(message=text, rank=0))
    skipped = failed_trial(spec("zero3", gpus_per_node=1), Failure(message=text)).with_record(reason=text)
    return write_run(path, [completed, failed, skipped, *sample_trials()[:3]]).path


def texts(path: Path) -> Iterator[str]:
    """The cells of a CSV that are no numbers."""
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.reader(file):
            for cell in row:
                try:
                    float(cell or "0")
                except ValueError:
                    yield cell


def _unquoted(path: Path) -> set[str]:
    """The characters of a CSV that are in no quotes."""
    return set(re.sub(r'"[^"]*"', "", path.read_bytes().decode()))


@pytest.mark.parametrize("text", HOSTILE)
def test_no_cell_of_any_table_of_a_hostile_run_is_a_formula(tmp_path: Path, text: str) -> None:
    run = load_run(hostile_run(tmp_path / "run", text))
    own = [path for path in write_tables(run) if path.suffix == ".csv"]
    joined = write_csv(run_frames([run]), tmp_path / "joined")
    assert {path.name for path in joined} >= {path.name for path in own} >= {"memory.csv", "trials.csv", "errors.csv"}
    written = [cell for path in (*own, *joined) for cell in texts(path)]
    assert [path for path in (*own, *joined) if _unquoted(path) & {"\r"}] == []
    assert [cell for cell in written if cell[0] in STARTS] == []
    assert written.count(as_cell(text)) > 10
    trials = pd.read_csv(run.folder.path / "trials.csv", dtype=str, keep_default_na=False)
    assert text in {as_text(name) for name in trials["model"]}
    assert text in {as_text(reason) for reason in trials["reason"]}


def test_parquet_has_no_formulas_and_keeps_texts_as_they_are(tmp_path: Path) -> None:
    run = load_run(hostile_run(tmp_path / "run", "=1+1"))
    write_tables(run)
    assert "=1+1" in set(read_frame(run.folder.path / "trials.parquet")["model"])


def test_negative_numbers_stay_numbers(tmp_path: Path) -> None:
    run = load_run(hostile_run(tmp_path / "run", "=1+1"))
    [rank, *_] = (trial.ranks[0] for trial in run.trials() if trial.ranks)
    below = rank.model_copy(update={"memory": [row.model_copy(update={"live_bytes": -7}) for row in rank.memory]})
    run.folder.trial(rank.trial_id).rank_record(0).write_text(below.model_dump_json())
    write_tables(run)
    lowest = pd.read_csv(run.folder.path / "memory.csv")["live_bytes"].min()
    assert lowest == -7
    write_csv(run_frames([run]), tmp_path / "joined")
    assert pd.read_csv(tmp_path / "joined" / "memory.csv")["live_bytes"].min() == -7


def test_the_energy_of_a_trial_is_found_by_a_name_that_was_escaped(tmp_path: Path) -> None:
    trial = completed_trial(spec("zero1", gpus_per_node=1, model=model("-2+3")))
    run = load_run(write_run(tmp_path / "run", [trial]).path)
    write_tables(run)
    assert list(energies(run)) == [trial.spec.trial_id]
    assert trial.spec.trial_id.startswith("-2")


@dataclass
class Named:
    name: str
    count: int


def test_committed_predictions_are_escaped_and_read_back() -> None:
    rows = [Named(text, -3) for text in HOSTILE]
    text = as_csv(Named, rows)
    assert from_csv(Named, text) == rows
    assert [row for row in csv.reader(io.StringIO(text, newline="")) if row[0][0] in STARTS] == []
    assert ",-3" in text


def test_figures_with_decimals_are_committed_as_they_stand() -> None:
    row = Named("-0.3024", 1)
    assert as_csv(Named, [row]).splitlines()[1] == "-0.3024,1"
    assert from_csv(Named, as_csv(Named, [row])) == [row]
    assert as_csv(Named, [Named("-0.3+2", 1)]).splitlines()[1] == "'-0.3+2,1"


def test_failures_of_other_releases_are_escaped_and_read_back(tmp_path: Path) -> None:
    cell = next(iter(cells()))
    row = {"deepspeed": "0.19.8", "cell": cell, "failure": "=1+1", "device_bytes": "-5"}
    matrix._write(tmp_path / "peaks.csv", [row])
    assert "'=1+1,-5" in (tmp_path / "peaks.csv").read_text()
    assert matrix.read(tmp_path / "peaks.csv") == [row]


def test_a_row_is_escaped_whole() -> None:
    assert escaped_row({"name": "=1", "count": -1}) == {"name": "'=1", "count": -1}


WRITERS = ("csv.writer(", "DictWriter(", ".to_csv(", "CSVWriter(")


def test_whatever_writes_csv_escapes_texts_or_writes_its_own() -> None:
    """A new writer is added here, or imports the one place that escapes."""
    own_words = {"benchmarks/gpu_campaign/kernel_rates.py", "benchmarks/gpu_campaign/sustained.py"}
    files = [path for folder in ("zerobench", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]
    writing = {path for path in files if any(name in path.read_text(encoding="utf-8") for name in WRITERS)}
    assert len(writing) >= 7
    escaping = {path for path in writing if "zerobench.report.words.cells import" in path.read_text(encoding="utf-8")}
    assert {path.relative_to(ROOT).as_posix() for path in writing - escaping} == own_words
