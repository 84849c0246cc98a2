"""What the docs say of `zerobench tune` against a full grid is worked out of the committed figures."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import pytest

from benchmarks.csv_rows import from_csv
from benchmarks.tune import measured_grid
from benchmarks.tune.beside_autotuner import FILE as BESIDE
from benchmarks.tune.beside_autotuner import Figure as Side
from benchmarks.tune.beside_autotuner import table
from benchmarks.tune.cases import CASES, MICRO_BATCHES, PLACES, SHARE, grid
from benchmarks.tune.grid import Figure, committed, figure
from zerobench.app.search.formula import formula_row
from zerobench.report.figures.fit import ROOM

FIGURES = {key: list(rows) for key, rows in groupby(committed(), lambda one: (one.world, one.case))}
TUNE_PAGE = Path("docs/tune.md").read_text(encoding="utf-8")
EACH = pytest.mark.parametrize("key", FIGURES, ids=lambda key: f"{key[0]}: {key[1]}")


def step_ms(rows: Sequence[Figure]) -> float:
    """Of the fastest that was seen to fit with room."""
    return min(float(row.expected_step_ms) for row in rows if row.tried == "true" and float(row.room) >= ROOM)


def of(rows: Sequence[Figure], *names: str) -> list[Figure]:
    return [row for row in rows if row.of in names]


def test_all_twelve_cases_were_searched() -> None:
    assert {case for world, case in FIGURES if world == "formula"} == {case.name for case in CASES}


@EACH
def test_the_grid_is_full_and_its_best_is_known(key: tuple[str, str]) -> None:
    """All that are faster than the best were tried, or are far too large."""
    rows = of(FIGURES[key], "grid")
    assert len(rows) == 60 == 2 * len(PLACES) * len(MICRO_BATCHES)
    best = step_ms(rows)
    faster = [row for row in rows if row.expected_step_ms and float(row.expected_step_ms) < best]
    assert all(row.tried == "true" or float(row.room) < -0.3 for row in faster)


@EACH
def test_tune_is_at_most_three_per_cent_slower_than_the_best_of_the_grid(key: tuple[str, str]) -> None:
    [choice] = of(FIGURES[key], "tune")
    assert float(choice.room) >= ROOM
    assert float(choice.expected_step_ms) <= 1.03 * step_ms(of(FIGURES[key], "grid"))


@EACH
def test_tune_is_never_slower_than_deepspeeds_defaults(key: tuple[str, str]) -> None:
    """A stage, micro batches of one and nothing else, where they fit with room."""
    [choice] = of(FIGURES[key], "tune")
    plain = [
        row
        for row in of(FIGURES[key], "grid")
        if (row.micro_batch, row.offload_optimizer, row.checkpointing) == (1, "none", "false")
        and float(row.room) >= ROOM
    ]
    assert all(float(choice.expected_step_ms) <= 1.01 * float(row.expected_step_ms) for row in plain)


@EACH
def test_tune_takes_a_fraction_of_the_grids_trials(key: tuple[str, str]) -> None:
    assert len(of(FIGURES[key], "tune", "tune tried")) <= 12


def test_both_tuners_found_a_configuration_that_runs_and_ours_by_fewer_trials_in_less_time() -> None:
    """How fast each is, only an idle machine can tell: the load stands beside it."""
    sides = {side.of: side for side in from_csv(Side, BESIDE.read_text(encoding="utf-8"))}
    theirs, ours = sides["DeepSpeed's autotuner"], sides["zerobench tune"]
    assert all(float(side.tokens_per_s) > 0 and float(side.load) > 0 for side in sides.values())
    assert 0 < ours.trials < theirs.trials
    assert float(ours.minutes) < float(theirs.minutes)
    readme = (BESIDE.parents[1] / "README.md").read_text(encoding="utf-8")
    assert "\n".join(table(list(sides.values()))[2:]) in readme


def test_the_figures_by_formula_are_those_of_today() -> None:
    """A change of the time model or of a formula is written anew: python -m benchmarks.tune.grid formula REPORTS."""
    case = CASES[3]
    [choice] = of(FIGURES["formula", case.name], "tune")
    request = next(
        trial
        for trial in grid(case)
        if (trial.strategy, trial.micro_batch_size) == (choice.strategy, choice.micro_batch)
        and str(trial.activation_checkpointing).lower() == choice.checkpointing
        and trial.offload_optimizer.value == choice.offload_optimizer
    )
    row = formula_row(request, case.cluster, plays_allocator=True)
    assert row is not None
    assert figure(case, "formula", "tune", row, tried=True) == choice
    assert request.micro_batch_size * request.gradient_accumulation_steps == SHARE


def test_on_cpu_ranks_the_choice_is_within_5_percent_of_the_best_measured_with_a_tenth_of_the_trials() -> None:
    figures = from_csv(measured_grid.Figure, measured_grid.FILE.read_text(encoding="utf-8"))
    counts = [sum(row.of == of for row in figures) for of in (measured_grid.TUNE, measured_grid.GRID)]
    assert counts == [measured_grid.MEASURED, 10 * measured_grid.MEASURED]
    slower = measured_grid.slower(figures)
    assert slower <= measured_grid.WITHIN
    assert f"{100 * slower:.1f}% slower for a tenth of the trials" in TUNE_PAGE
