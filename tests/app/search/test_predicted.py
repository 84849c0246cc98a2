"""The frontier of a plan: what it names fits, and a search without an answer is given up and named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.app.search.by_arithmetic import complete, predict_by_arithmetic
from tests.report.documents.run import predicted_rank
from tests.tools.laid_out import laid_out
from tests.tools.no_emulator import no_emulator  # noqa: F401 -- a fixture
from zerobench.app.search import predicted
from zerobench.app.search.plan import read_plan
from zerobench.app.search.plan_request import PlanRequest
from zerobench.app.search.predicted import frontier_rows, plan_frontiers
from zerobench.common.errors import UserError
from zerobench.config.derived.frontier_axes import frontier_axis
from zerobench.config.sweep.expand import PlannedTrial
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.runner import RunResult
from zerobench.records.records import Failure
from zerobench.report.figures.make import trial_figures

REQUEST = PlanRequest(model="gpt2-1.5b", gpus="8", gpu="a100", sequence_length="1024", stage="2")

pytestmark = pytest.mark.usefixtures("no_emulator")


def test_what_a_frontier_names_fits_and_what_it_calls_too_large_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predicted, "predict", predict_by_arithmetic)
    asked = read_plan(REQUEST)
    found = plan_frontiers(asked, frontier_axis("micro-batch"), tmp_path, Observer())
    for key, frontier in found.frontiers.items():
        assert frontier.largest is not None
        assert frontier.too_large is not None
        assert frontier.too_large.value <= 1 + 1.01 * frontier.largest.value
        for value, has_room in ((frontier.largest, True), (frontier.too_large, False)):
            trial = found.trial(key, value)
            assert trial is not None
            row = trial_figures(trial, key, asked.cluster)
            assert row.has_room is has_room
    assert [row.row is not None for row in frontier_rows(asked, found)] == [True] * len(found.frontiers)


@pytest.mark.parametrize("told", [True, False], ids=["needed", "nothing"])
def test_a_try_that_was_refused_leads_the_search_as_one_that_completed_where_it_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    asked, axis = read_plan(replace(REQUEST, micro_batch="400")), frontier_axis("micro-batch")  # it begins too large
    monkeypatch.setattr(predicted, "predict", predict_by_arithmetic)
    plain = plan_frontiers(asked, axis, tmp_path / "plain", Observer())

    def refuses(planned: Sequence[PlannedTrial], sweep: Mapping[str, Any], reports: Path, _: Observer) -> RunResult:
        run = laid_out(reports / sweep["name"], planned, sweep)
        for item in planned:
            needed = max(row.held_bytes for row in predicted_rank(item.trial).device_memory)
            is_refused = needed > asked.cluster.device_memory_bytes
            failure = Failure(message="refused", bytes_needed=needed if told else None)
            complete(run, item.trial, failure if is_refused else None)
        return RunResult(run)

    monkeypatch.setattr(predicted, "predict", refuses)
    found = plan_frontiers(asked, axis, tmp_path / "refused", Observer())
    more = len(found.trials) - len(plain.trials)
    assert more == 0 if told else more > 0
    assert [one.largest for one in found.frontiers.values()] == [one.largest for one in plain.frontiers.values()]


def predicts_without(
    strategy: str, planned: Sequence[PlannedTrial], sweep: Mapping[str, Any], reports: Path
) -> RunResult:
    """A run whose trials of `strategy` leave nothing."""
    run = laid_out(reports / sweep["name"], planned, sweep)
    for item in planned:
        if item.trial.strategy != strategy:
            complete(run, item.trial)
    return RunResult(run)


def test_a_frontier_of_which_every_trial_fails_is_an_error_that_names_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(planned: Sequence[PlannedTrial], sweep: Mapping[str, Any], reports: Path, _: Observer) -> RunResult:
        return predicts_without("zero2", planned, sweep, reports)

    monkeypatch.setattr(predicted, "predict", fails)
    with pytest.raises(UserError, match=f"no trial of {tmp_path} completed"):
        plan_frontiers(read_plan(REQUEST), frontier_axis("micro-batch"), tmp_path, Observer())


def test_cells_whose_search_was_given_up_are_named_beside_those_that_were_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_at_last(
        planned: Sequence[PlannedTrial], sweep: Mapping[str, Any], reports: Path, _: Observer
    ) -> RunResult:
        return predicts_without("" if sweep["name"] == "round-1" else "zero3", planned, sweep, reports)

    monkeypatch.setattr(predicted, "predict", fails_at_last)
    asked = read_plan(PlanRequest(model="gpt2-1.5b", gpus="8", gpu="a100", sequence_length="1024", stage="2,3"))
    found = plan_frontiers(asked, frontier_axis("micro-batch"), tmp_path, Observer())
    strategies = {item.trial.trial_id: item.trial.strategy for item in asked.planned}
    assert {strategies[name] for name in found.given_up} == {"zero3"}
    assert {strategies[name] for name in found.frontiers} == {"zero2"}
    assert all(reason.startswith("not ended; see ") for reason in found.given_up.values())
