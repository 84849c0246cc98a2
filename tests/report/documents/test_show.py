"""The terminal's tables, compared whole with what they printed when somebody last looked at them.

Set UPDATE_GOLDEN=1 to write the files anew, then read the difference.
"""

import io
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from tests.report.sample_predictions import predicted_trials
from tests.report.sample_run import (
    SampleTrial,
    completed_trial,
    cpu_trials,
    model,
    sample_trials,
    spec,
    trial_record,
    write_run,
)
from tests.tools.golden import as_looked_at
from tests.tools.printed import printed, without_trailing_blanks
from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Status
from zerobench.records.folder import RunFolder
from zerobench.records.store import load_run
from zerobench.report.documents.show import show_run
from zerobench.report.explain.sentences import headline
from zerobench.report.export.tidy_tables import write_tables
from zerobench.report.figures.run.runs import run_figures

GOLDEN = Path(__file__).parent / "golden"
RUNS = {"gpu": sample_trials, "cpu": cpu_trials, "predicted": predicted_trials}


def shown(run: Path, width: int = 80, *, on_screen: bool = False, **options: int) -> str:
    """What `show_run` prints, without colour and without blanks at the ends of lines."""
    text = printed(lambda console: show_run(run, console, **options), width, force_terminal=on_screen)
    return without_trailing_blanks(text)


def shown_trials(path: Path, trials: Sequence[SampleTrial], width: int = 80) -> str:
    """What `show_run` prints for a run of these trials."""
    write_run(path / "run", trials, samples=False)
    return shown(path / "run", width)


def test_the_answer_comes_before_all_tables_and_on_a_screen_after_them(tmp_path: Path) -> None:
    write_run(tmp_path / "run", sample_trials())
    answer = [line.split()[0] for line in headline(run_figures([load_run(tmp_path / "run")]))]
    assert len(answer) >= 4
    lines = shown(tmp_path / "run", width=400).splitlines()
    assert [line.split()[0] for line in lines[1 : 1 + len(answer)]] == answer
    on_screen = shown(tmp_path / "run", width=400, on_screen=True).splitlines()
    assert on_screen[-len(answer) - 2 : -len(answer) - 1] == ["Summary"]
    assert [line.split()[0] for line in on_screen[-len(answer) - 1 : -1]] == answer
    assert on_screen[1] == lines[1 + len(answer)]


def test_a_run_of_more_trials_than_are_shown_leaves_its_summary_to_the_report(tmp_path: Path) -> None:
    write_run(tmp_path / "run", sample_trials())
    text = shown(tmp_path / "run", most_trials=2)
    assert "fit" not in text.splitlines()[1]
    assert "Summary of all: zerobench report" in text


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("kind", RUNS)
def test_the_tables_are_those_that_were_looked_at(tmp_path: Path, kind: str, width: int) -> None:
    write_run(tmp_path / "run", RUNS[kind]())
    write_tables(load_run(tmp_path / "run"))
    as_looked_at(shown(tmp_path / "run", width), GOLDEN / f"{kind}_{width}.txt")


@pytest.mark.parametrize("width", [80, 100, 119, 120, 140])
@pytest.mark.parametrize("kind", RUNS)
def test_no_line_is_wider_than_the_terminal_and_no_number_is_cut(tmp_path: Path, kind: str, width: int) -> None:
    text = shown_trials(tmp_path, RUNS[kind](), width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "…" not in text


def test_the_largest_figures_still_fit_eighty_columns(tmp_path: Path) -> None:
    huge = completed_trial(spec("zero0", gpus_per_node=2, model=model("x" * 60, layers=200, width=8192)), step_s=3000.0)
    tiny = completed_trial(spec("zero3", gpus_per_node=2, offload_optimizer="cpu"), step_s=0.0011)
    text = shown_trials(tmp_path, [huge, tiny])
    assert max(cell_len(line) for line in text.splitlines()) <= 80
    assert "…" not in text


def test_the_tables_say_which_figures_are_not_to_be_believed(tmp_path: Path) -> None:
    write_run(tmp_path / "run", sample_trials())
    colours = {"force_terminal": True, "color_system": "standard"}
    text = printed(lambda console: show_run(tmp_path / "run", console), 140, **colours)
    rows = [line for line in text.splitlines() if "! zero1 mb4 ga2" in line]
    assert len(rows) == 7  # the header, and the six tables that it is in
    assert all("\x1b[9;31m" in row for row in rows[1:])  # struck through, and red


def test_names_from_a_sweep_are_never_markup_and_never_escapes(tmp_path: Path) -> None:
    trials = [
        completed_trial(spec("zero1", gpus_per_node=1, model=model(name)))
        for name in ("[bold]a[/] :smile: \x1b[2J", "[/nothing]")
    ]
    trials[1] = trials[1].with_ranks(notes=["[red]note\n\x1b]0;title\x07"], hostname="[i]h")
    failed = trial_record(spec("zero2"), Status.CRASH, reason="[link=x]boom[/link]")
    text = shown_trials(tmp_path, [*trials, SampleTrial(spec("zero2"), failed, [])], 140)
    for written in ("[bold]a[/] :smile:", "[/nothing]", "[red]note", "[i]h", "[link=x]boom[/link]"):
        assert written in text
    assert "\x1b" not in text
    assert "\x07" not in text


def test_wide_characters_in_names_keep_the_tables_straight(tmp_path: Path) -> None:
    names = ["模型模型模型模型模型模型模型模型模型模型", "modèle"]
    trials = [completed_trial(spec("zero1", gpus_per_node=1, model=model(name))) for name in names]
    text = shown_trials(tmp_path, trials)
    assert max(cell_len(line) for line in text.splitlines()) <= 80


def test_a_terminal_that_lacks_a_character_gets_another(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [completed_trial(spec("zero1", gpus_per_node=1, model=model("modèle")))])
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    show_run(tmp_path / "run", Console(width=80, file=file))
    file.flush()
    assert b"mod?le" in raw.getvalue()


def test_a_run_that_has_not_ended_says_how_much_is_left(tmp_path: Path) -> None:
    trials = sample_trials()[:3]
    run = write_run(tmp_path / "run", trials)
    for trial in trials[1:]:
        run.trial(trial.spec.trial_id).record.unlink()
    assert "3 trials: 1 completed, 2 not ended" in shown(tmp_path / "run")
    run.trial(trials[0].spec.trial_id).record.unlink()
    assert shown(tmp_path / "run") == "Run sample_20260102-030405\n3 trials: 3 not ended\n\n"


def test_a_long_run_shows_its_first_trials_and_reads_no_more_ranks_than_it_needs(tmp_path: Path) -> None:
    trials = [completed_trial(spec(f"zero{i % 4}", gpus_per_node=1, micro_batch_size=1 + i // 4)) for i in range(40)]
    run = write_run(tmp_path / "run", trials, samples=False)
    for trial in trials[4:]:
        run.trial(trial.spec.trial_id).rank_record(0).write_text("torn")
    text = shown(tmp_path / "run", most_trials=4)
    assert "40 trials: 40 completed" in text
    assert "36 more trials" in text
    assert "trials.csv" in text


@pytest.mark.parametrize("name", ["rank_0.json", "record.json", "trial.json"])
def test_a_torn_document_that_is_shown_is_an_error_that_names_the_file_and_the_way_out(
    tmp_path: Path, name: str
) -> None:
    trial = completed_trial(spec("zero1", gpus_per_node=1))
    run = write_run(tmp_path / "run", [trial])
    (run.trial(trial.spec.trial_id).path / name).write_text("torn")
    with pytest.raises(UserError, match=rf"{name}: torn or corrupt: [^\n]*: zerobench run .*--resume "):
        shown(tmp_path / "run")


def test_energy_is_told_from_the_tables_and_not_once_they_are_older_than_the_trial(tmp_path: Path) -> None:
    trial = completed_trial(spec("zero1", gpus_per_node=2), step_s=2.0)
    run = write_run(tmp_path / "run", [trial])
    assert energy_column(shown(tmp_path / "run", 140)) == "-"
    write_tables(load_run(tmp_path / "run"))
    joules = 2 * 400 * 10 / (7 * 2 * 8 * 1024)  # GPUs, watts, seconds; steps, ranks, sequences, tokens
    assert float(energy_column(shown(tmp_path / "run", 140))) == pytest.approx(joules, abs=1e-4)
    touch_later(run, trial)
    assert energy_column(shown(tmp_path / "run", 140)) == "-"


def energy_column(text: str) -> str:
    """The cell under `J/token` in the speed table of a run of one trial."""
    lines = text.splitlines()
    header = next(index for index, line in enumerate(lines) if "J/token" in line)
    end = lines[header].index("J/token") + len("J/token")
    return lines[header + 2][:end].split()[-1]


def touch_later(run: RunFolder, trial: SampleTrial) -> None:
    """Make the trial's record newer than everything else."""
    record = run.trial(trial.spec.trial_id).record
    later = record.stat().st_mtime + 100
    os.utime(record, (later, later))


@pytest.mark.parametrize("text", ["trial_id\nx\n", "trial_id,energy_joules\nx,much\n"])
def test_a_spoilt_table_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    run = write_run(tmp_path / "run", sample_trials()[:1])
    (run.path / "trials.csv").write_text(text)
    with pytest.raises(UserError, match=r"trials\.csv: torn or corrupt"):
        shown(tmp_path / "run")


def test_phases_that_nobody_can_tell_apart_are_missing_and_not_zero(tmp_path: Path) -> None:
    trial = completed_trial(spec("zero0", gpus_per_node=2), step_s=0.5)
    nothing = dict.fromkeys(("forward_s", "backward_s", "optimizer_s"))
    trial = trial.with_ranks(step_times=lambda rank: [time.model_copy(update=nothing) for time in rank.step_times])
    text = shown_trials(tmp_path, [trial])
    row = next(line.split() for line in text.partition("Speed, ")[2].splitlines() if "zero0" in line)
    assert row.count("-") >= 3, row
