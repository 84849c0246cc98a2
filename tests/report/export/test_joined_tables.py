"""Tidy tables of several runs: the rows of each run's own, one run after the other; and of ways to train compared."""

from pathlib import Path

import pandas as pd

from tests.report.figures.strategies.figures import figures, rows, spec
from tests.report.sample_run import RUN_ID, cpu_trials, sample_trials, write_run
from zerobench.records.store import load_run
from zerobench.report.export import schema
from zerobench.report.export.joined_tables import strategies_frame, write_csv
from zerobench.report.export.run_frames import run_frames
from zerobench.report.export.tidy_tables import write_tables

FRAMES = {"trials", "errors", "peaks", "ranks", "phases", "steps", "compared"}


def test_the_joined_tables_hold_the_rows_of_each_runs_own(tmp_path: Path) -> None:
    for name, trials in (("one", sample_trials()[:4]), ("two", cpu_trials())):
        write_run(tmp_path / name, trials, samples=False)
    runs = [load_run(tmp_path / name) for name in ("one", "two")]
    for run in runs:
        write_tables(run)
    paths = write_csv(run_frames(runs), tmp_path / "joined")
    assert {path.stem for path in paths} == {*FRAMES, "memory"}
    assert sorted(paths) == sorted((tmp_path / "joined").iterdir())
    for name, columns in (("memory", schema.MEMORY), ("trials", schema.TRIALS)):
        own = pd.concat([pd.read_csv(run.folder.path / f"{name}.csv") for run in runs], ignore_index=True)
        joined = pd.read_csv(tmp_path / "joined" / f"{name}.csv")[list(columns)]
        pd.testing.assert_frame_equal(joined, own[list(columns)], check_dtype=False)


def test_a_table_without_rows_has_its_columns(tmp_path: Path) -> None:
    run = write_run(tmp_path / RUN_ID, sample_trials()[:1], samples=False)
    write_csv(run_frames([load_run(run.path)]), tmp_path / "joined")
    assert list(pd.read_csv(tmp_path / "joined" / "errors.csv")) == list(schema.ERRORS)


def test_the_folder_is_made_with_those_above_it_and_may_be_there_already(tmp_path: Path) -> None:
    run = write_run(tmp_path / RUN_ID, sample_trials()[:1], samples=False)
    frames = run_frames([load_run(run.path)])
    first = write_csv(frames, tmp_path / "new" / "joined")
    assert write_csv(frames, tmp_path / "new" / "joined") == first


def test_a_row_of_ways_to_train_says_what_their_comparison_says() -> None:
    found = rows(figures(spec("single", 1), 2.0), figures(spec("ddp", 4), 0.8))
    table = strategies_frame(found).to_dict("records")
    assert [row["speed_up"] for row in table] == [row.speed_up for row in found]
    assert [row["losses"] for row in table] == [row.verdict for row in found]
    assert [row["world_size"] for row in table] == [1, 4]
    assert list(strategies_frame(found)) == list(schema.COMPARED)


def test_a_server_has_neither_a_verdict_on_losses_nor_a_distance_of_them_or_of_norms() -> None:
    sides = [figures(spec("single", 1), 2.0), figures(spec("ddp", 2), 1.0)]
    sides.append(figures(spec("parameter-server", 3), 1.0, role="server"))
    distances = {"single n1": 0.0, "ddp n2": 1e-7, "parameter-server n3": 1e-7}
    table = strategies_frame(rows(*sides, parity=distances, norm=3e-4)).set_index("strategy")
    assert table["losses"].isna().to_dict() == {"single": False, "ddp": False, "parameter-server": True}
    assert table["loss_difference"].isna().to_dict() == {"single": False, "ddp": False, "parameter-server": True}
    assert table.loc["ddp", "loss_difference"] == 1e-7
    assert table["norm_difference"].isna().to_dict() == {"single": False, "ddp": False, "parameter-server": True}
    assert table.loc["ddp", "norm_difference"] == 3e-4
