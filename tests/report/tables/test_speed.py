"""Energy per token in the table of speeds."""

from dataclasses import replace

import pytest

from tests.report.sample_run import SampleTrial, completed_trial, spec
from zerobench.report.figures.make import trial_figures
from zerobench.report.tables.speed import speed_table


def joules_cell(trial: SampleTrial, joules: float) -> str:
    figures = trial_figures(trial)
    table = speed_table([figures], {figures.trial_id: joules})
    [column] = [column for column in table.columns if column.name == "J/token"]
    [line] = table.lines
    return column.cell(line.figures)


def test_energy_is_divided_by_the_tokens_of_all_timed_steps_and_ranks() -> None:
    trial = completed_trial(spec("zero1", gpus_per_node=2))
    tokens = len(trial.ranks[0].step_times) * trial.spec.global_batch_tokens
    assert float(joules_cell(trial, 3.0 * tokens)) == pytest.approx(3.0)


def test_one_rank_alone_of_many_has_no_energy_per_token_since_the_others_tokens_took_none() -> None:
    together = completed_trial(spec("zero1", gpus_per_node=2))
    solo = completed_trial(spec("zero1", gpus_per_node=2, evidence="solo"))
    alone = replace(solo, ranks=solo.ranks[:1])
    assert [joules_cell(trial, 1000.0) == "-" for trial in (together, alone)] == [False, True]
