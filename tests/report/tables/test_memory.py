"""Start-up peaks in the tables of memory: each side's own, where a trial has a server."""

import pytest

from tests.report.sample_run import GIB, SampleTrial, completed_trial, spec
from zerobench.common.vocabulary import Category, Phase, StepKind
from zerobench.config.derived.roles import Role
from zerobench.records.records import RankRecord
from zerobench.report.figures.make import trial_figures
from zerobench.report.tables.memory import device_table, rank_spread_table

LARGE = 70 * GIB


def raised(rank: RankRecord, role: Role) -> RankRecord:
    """The rank in a role, a server with a peak of its own while it is built."""
    memory = [
        row.model_copy(update={"own_peak_bytes": LARGE, "at_peak_bytes": LARGE})
        if role is Role.SERVER and (row.step, row.phase, row.category) == (StepKind.FIRST, Phase.INIT, Category.TOTAL)
        else row
        for row in rank.memory
    ]
    return rank.model_copy(update={"role": role.value, "memory": memory})


@pytest.fixture
def trial() -> SampleTrial:
    made = completed_trial(spec("zero0", gpus_per_node=3))
    roles = (Role.SERVER, Role.WORKER, Role.WORKER)
    return SampleTrial(made.spec, made.record, [raised(*pair) for pair in zip(made.ranks, roles, strict=True)])


def test_a_servers_start_up_peak_is_shown_in_its_row_and_not_in_its_workers(trial: SampleTrial) -> None:
    rows = {line.figures.instant.role: line.figures for line in device_table([trial_figures(trial)]).lines}
    assert rows.keys() == {"server", "worker"}
    assert rows["server"].start_up_bytes == LARGE
    assert 0 < (rows["worker"].start_up_bytes or 0) < LARGE


def test_the_spread_over_ranks_leaves_the_servers_start_up_peak_out(trial: SampleTrial) -> None:
    [line] = rank_spread_table([trial_figures(trial)]).lines
    assert 0 < (line.figures.start_up_bytes or 0) < LARGE


def test_the_start_up_peak_of_several_ranks_is_the_largest_of_theirs(trial: SampleTrial) -> None:
    first, *others = trial.ranks
    ranks = [raised(first, Role.SERVER).model_copy(update={"role": Role.WORKER.value}), *others]
    [line] = device_table([trial_figures(SampleTrial(trial.spec, trial.record, ranks))]).lines
    assert line.figures.start_up_bytes == LARGE
