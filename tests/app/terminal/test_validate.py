"""`zerobench validate` as users meet it: an earlier run read again, a sweep started, mistakes in one line."""

from functools import partial
from pathlib import Path

import pytest

from tests.app.terminal.conftest import Call
from tests.report.sample_predictions import foretelling, predicted_trials
from tests.report.sample_run import RUN_ID, completed_trial, failed_trial, sample_trials, spec, write_run
from tests.tools.refusals import refused
from zerobench.records.records import Failure
from zerobench.report.export.tidy_tables import read_frame


@pytest.fixture
def validate(call: Call, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs `zerobench validate` on a wide terminal."""
    monkeypatch.setenv("COLUMNS", "140")
    return partial(call, "validate")


def test_an_earlier_run_is_read_and_its_errors_are_printed_and_written(validate: Call, tmp_path: Path) -> None:
    write_run(tmp_path / "reports" / RUN_ID, predicted_trials(), samples=False)
    code, out, err = validate("--run", RUN_ID, "--markdown", "errors.md", "--details")
    assert (code, err) == (0, "")
    assert "Simulated against measured: device memory" in out
    assert "Solo against measured: device memory" in out
    assert "- zero3: was measured, but its losses differ from those of single n1" in out
    row = next(line.split() for line in out.splitlines() if line.startswith("peak") and " all " in line)
    markdown = (tmp_path / "errors.md").read_text()
    assert markdown.startswith(f"# Predicted against measured: {RUN_ID}\n")
    assert f"| {' | '.join(row[:6])} |" in markdown
    frame = read_frame(tmp_path / "reports" / RUN_ID / "errors.parquet")
    assert set(frame["evidence"]) == {"simulated", "solo"}


def test_on_80_by_24_each_world_has_a_row_and_mistakes_are_counted(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    write_run(tmp_path / "reports" / RUN_ID, predicted_trials(), samples=False)
    _, out, _ = call("validate", "--run", RUN_ID)
    lines = out.splitlines()
    assert (len(lines) < 24, max(map(len, lines)) <= 80) == (True, True)
    rows = [line.split()[:4] for line in lines if " peak " in line and "measured " in line]
    places = [("solo", "device"), ("simulated", "device"), ("simulated", "host")]
    assert rows == [[world, "measured", place, "peak"] for world, place in places]
    words = " ".join(out.split())
    assert "Under-predictions beyond 1%: 4; zero2 opt=cpu simulated, first forward" in words
    assert "Not compared: zero3: was measured, but its losses differ" in words


def test_a_trial_that_failed_is_exit_status_1_and_the_rest_is_reported(validate: Call, tmp_path: Path) -> None:
    real = completed_trial(spec("zero1", gpus_per_node=1))
    failed = failed_trial(spec("zero2", gpus_per_node=1), Failure(message="killed"))
    write_run(tmp_path / "run", [real, failed, foretelling(real, "solo", 1.0)], samples=False)
    code, out, _ = validate("--run", "run")
    assert code == 1
    assert "solo: 1 trial, 1 completed, 1 prediction compared" in out


def test_a_sweep_is_run_with_evidence_as_an_axis(validate: Call, tmp_path: Path) -> None:
    options = ["--set", "world_size=4096", "--only", "strategy=zero1", "--only", "evidence=measured"]
    code, out, err = validate("quickstart", *options, "--worlds", "formula")
    assert (code, err) == (0, "")
    [run] = (tmp_path / "reports").iterdir()
    assert f"Run: {run}" in out
    sweep = (run / "sweep.yaml").read_text()
    assert "- measured\n" in sweep
    assert "- formula\n" in sweep
    assert "- solo\n" not in sweep


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "SWEEP is missing: a sweep file or a shipped one; or an earlier run, with --run RUN"),
        (["quickstart", "--run", "here"], "drop SWEEP"),
        (["--run", "here", "--set", "x=1"], "drop --set"),
        (["--run", "here", "--worlds", "solo"], "drop --worlds"),
        (["--run", "here"], "'here' is not a run folder"),
        (["quickstart", "--worlds", "simulatd"], "did you mean 'simulated'"),
        (["quickstart", "--worlds", "measured"], "choices: solo, emulated, simulated, formula"),
        (["quickstart", "--worlds", ","], "no world given"),
        (["quickstart", "--set", "evidence=solo"], "choose worlds with --worlds"),
        (["quickstart", "--markdown", "no/such/folder.md"], "--markdown: no/such/folder.md"),
        (["quikstart"], "did you mean 'quickstart'"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_exit_status_2(validate: Call, arguments: list[str], words: str) -> None:
    refused(validate(*arguments), words)


def test_a_run_without_predictions_is_a_mistake(validate: Call, tmp_path: Path) -> None:
    write_run(tmp_path / "run", sample_trials()[:2], samples=False)
    refused(validate("--run", "run"), "no trial both measured (or solo) and predicted")
