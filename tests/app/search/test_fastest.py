"""The search for the fastest: what it takes fits, nothing that fits is faster, and few trials tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.predicted_trial import with_memory
from tests.tools.known import known
from tests.tools.no_emulator import no_emulator  # noqa: F401 -- a fixture
from zerobench.app.search.fastest import Cell, fastest, search
from zerobench.app.search.formula import formula_row
from zerobench.app.search.plan import Plan, read_plan
from zerobench.app.search.plan_request import PlanRequest
from zerobench.app.search.played_rounds import Rounds
from zerobench.app.search.searched import cells_by_formula, searched
from zerobench.common.errors import UserError
from zerobench.config.derived.batch import limit_micro_batches
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.observer import Observer
from zerobench.records.store import load_run
from zerobench.report.explain.choice import AS_FAST
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.words.labels import labels

pytestmark = pytest.mark.usefixtures("no_emulator")

REQUEST = PlanRequest(
    model="llama-7b", gpus="8", gpu="h100", host_memory="1TB", global_batch="512", tunes=True, formula=True, stage="1,3"
)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return read_plan(REQUEST)


@pytest.fixture
def cells(asked: list[Cell]) -> list[Cell]:
    """Of which none was tried."""
    return [Cell(one.by_formula) for one in asked]


def needing(
    share: Callable[[TrialSpec], float], tried: list[TrialFigures]
) -> Callable[[Sequence[TrialFigures]], list[TrialFigures]]:
    """A world where a trial needs `share` times the memory that the formula says."""

    def make(rows: Sequence[TrialFigures]) -> list[TrialFigures]:
        found = [with_memory(row, int(known(row.capacity_bytes) / share(row.spec))) for row in rows]
        tried.extend(found)
        return found

    return make


def true_best(cells: Sequence[Cell], share: Callable[[TrialSpec], float]) -> TrialFigures:
    """By trying all."""
    everything = [row for cell in cells for row in cell.by_formula.values()]
    return known(fastest(needing(share, [])(everything)))


def step_s(row: TrialFigures | None) -> float:
    assert row is not None
    return known(row.expected).step_s


@pytest.mark.parametrize("factor", [1.0, 1.2, 1.6])
@pytest.mark.parametrize("width", [None, 4])
def test_the_choice_is_within_two_per_cent_of_the_best_of_all_by_a_fraction_of_the_trials(
    cells: list[Cell], factor: float, width: int | None
) -> None:
    def share(spec: TrialSpec) -> float:
        return factor if spec.activation_checkpointing is False else factor + 0.1

    tried: list[TrialFigures] = []
    search(cells, needing(share, tried), lambda _: None, width)
    found = known(fastest(cell.best for cell in cells))
    assert found.has_room
    assert step_s(found) <= (1 + AS_FAST) ** 2 * step_s(true_best(cells, share))
    assert len(tried) <= 16
    assert sum(len(cell.by_formula) for cell in cells) > 16 * len(tried)


def test_a_cell_whose_first_choice_fails_goes_on_with_the_next(cells: list[Cell]) -> None:
    search(cells, lambda rows: needing(lambda _: 1.0, [])(rows[1:]), lambda _: None, width=None)
    assert cells[0].failed
    assert cells[0].best is None
    assert all(cell.best is not None for cell in cells[1:])


def test_where_nothing_fits_that_which_comes_nearest_is_tried_and_shown(cells: list[Cell]) -> None:
    search(cells, needing(lambda _: 10.0, []), lambda _: None)
    assert all(cell.best is None for cell in cells)
    assert all(cell.shown is not None for cell in cells)


def test_a_run_holds_all_rounds_with_three_micro_batches_played_and_trials_are_of_the_whole_step(
    tmp_path: Path, plan: Plan
) -> None:
    assert plan.varied is not None
    found = searched(plan, Rounds(plan, tmp_path, Observer()), Observer(), 2)
    assert found.num_rounds >= 1
    assert {row.spec.global_batch_size for row in found.rows} == {512}
    trials = list((found.result.folder.path / "trials").iterdir())
    assert len(trials) == found.num_tried + sum(one.skipped is not None for one in plan.planned)
    assert found.result.statuses.total() >= found.num_tried
    for row in found.rows:
        whole = formula_row(row.spec, plan.cluster)
        assert step_s(row) == pytest.approx(step_s(whole), rel=1e-9)
        assert limit_micro_batches(row.spec).gradient_accumulation_steps <= 3
    kept = [trial.spec for trial in load_run(found.result.folder.path).trials()]
    assert {spec.global_batch_size for spec in kept} == {512}
    assert not any("ga" in label for label in labels(kept))


def test_rounds_join_one_run(tmp_path: Path, plan: Plan, cells: list[Cell]) -> None:
    rounds = Rounds(plan, tmp_path, Observer())
    first, second = list(cells[0].by_formula.values())[:2]
    made = [*rounds.make([first]), *rounds.make([second])]
    assert [row.spec.micro_batch_size for row in made] == [1, 2]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_world_where_every_trial_fails_ends_the_search_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: Plan
) -> None:
    assert plan.varied is not None
    monkeypatch.setattr("zerobench.launch.run.simulations.formula_record", _fails)
    with pytest.raises(UserError, match=f"no trial of {tmp_path}/tune-llama-7b_.* completed; see its records$"):
        searched(plan, Rounds(plan, tmp_path, Observer()), Observer())


def _fails(trial: TrialSpec) -> None:
    raise UserError(f"{trial.strategy}: a formula that is not there")


def test_a_model_without_a_closed_form_is_refused_in_one_line(tmp_path: Path, plan: Plan) -> None:
    assert plan.varied is not None
    unknown = [
        one.model_copy(update={"trial": one.trial.model_copy(update={"strategy": "parameter-server"})})
        for one in plan.planned
    ]
    with pytest.raises(UserError, match="no closed form for llama-7b"):
        lacking = replace(plan, planned=unknown)
        searched(lacking, Rounds(lacking, tmp_path, Observer()), Observer())


def test_where_gpu_and_host_are_both_short_finer_shares_of_the_optimizer_are_asked_for() -> None:
    """13B on two GPUs of 80 GB: a quarter of the optimizer in host memory leaves too much on the GPU, half of it needs
    more than the host has.
    """
    request = replace(
        REQUEST, model="llama-13b", gpus="2", gpu="a100-80", host_memory="128GB", global_batch="2", stage="3"
    )
    plan = read_plan(request)
    cells = cells_by_formula(
        [item.trial for item in plan.planned if item.skipped is None], known(plan.varied), plan.cluster
    )
    fitting = [row.spec.ds_config for cell in cells for row in cell.by_formula.values() if row.has_room]
    assert {keys["zero_optimization.offload_optimizer.ratio"] for keys in fitting} == {0.3, 0.4}
