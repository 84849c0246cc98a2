"""Keys that only the order of a step tells apart: those that gain are taken, in each world, and no other is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from tests.report.predicted_trial import with_memory
from tests.tools.known import known
from tests.tools.no_emulator import no_emulator  # noqa: F401 -- a fixture
from zerobench.app.search.fastest import Cell, fastest, search
from zerobench.app.search.keys import refine
from zerobench.app.search.plan import Plan, read_plan
from zerobench.app.search.plan_request import PlanRequest
from zerobench.config.trial.trial import TrialSpec
from zerobench.report.figures.trial import TrialFigures

pytestmark = pytest.mark.usefixtures("no_emulator")

PREFETCH, PERSISTS, REDUCE = (
    f"zero_optimization.{name}"
    for name in ("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold", "reduce_bucket_size")
)
Share = Callable[[TrialSpec], float]
GAINS = {(PREFETCH, 5_000_000): 0.97, (PREFETCH, 200_000_000): 0.98, (PERSISTS, 1_000_000): 0.95, (REDUCE, None): 1.1}
"""Of the time of a step, by key and value."""


def by_keys(shares: Mapping[tuple[str, int | None], float]) -> Share:
    def share(spec: TrialSpec) -> float:
        found = 1.0
        for (key, value), less in shares.items():
            found *= less if key in spec.ds_config and value in {None, spec.ds_config[key]} else 1.0
        return found

    return share


@pytest.fixture(scope="module")
def plan() -> Plan:
    return read_plan(
        PlanRequest(
            model="llama-7b",
            gpus="8",
            gpu="h100",
            host_memory="1TB",
            global_batch="512",
            tunes=True,
            formula=True,
            stage="3",
        )
    )


@pytest.fixture
def cells(asked: list[Cell]) -> list[Cell]:
    """The fastest of which is found."""
    return [Cell(dict(one.by_formula)) for one in asked]


class World:
    """Trials that take `share` times what the formula says, and leave the order of their step or do not."""

    def __init__(self, share: Share, *, replays: bool, fits: Callable[[TrialSpec], bool] = lambda _: True) -> None:
        self.share, self.replays, self.fits = share, replays, fits
        self.made: list[TrialSpec] = []
        self.last_s = 0.0
        """What the formula says of the last one."""

    def make(self, rows: Sequence[TrialFigures]) -> list[TrialFigures]:
        found = []
        for row in rows:
            spec = row.spec
            self.made.append(spec)
            assert row.expected is not None
            self.last_s = row.expected.step_s
            expected = replace(row.expected, step_s=row.expected.step_s * self.share(spec))
            room = known(row.capacity_bytes) if self.fits(spec) else 1
            found.append(replace(with_memory(row, room), expected=expected, has_trace=self.replays))
        return found

    @property
    def keys(self) -> list[dict[str, int]]:
        """Of all that were made."""
        return [dict(spec.ds_config) for spec in self.made]


def best_of(cells: Sequence[Cell]) -> TrialFigures:
    found = known(fastest(cell.best for cell in cells))
    assert found.expected is not None
    return found


def step_s(row: TrialFigures) -> float:
    return known(row.expected).step_s


def refined(plan: Plan, cells: Sequence[Cell], world: World) -> tuple[TrialFigures, TrialFigures]:
    """The fastest before and after, what was made meanwhile alone left in the world."""
    search(cells, world.make, lambda _: None, 4)
    before = best_of(cells)
    world.made.clear()
    refine(cells, plan.cluster, world.make, lambda _: None)
    return before, best_of(cells)


def test_of_the_fastest_each_key_is_replayed_by_itself_and_then_those_together_that_gain(
    plan: Plan, cells: list[Cell]
) -> None:
    world = World(by_keys(GAINS), replays=True)
    before, after = refined(plan, cells, world)
    own = before.trial.spec.ds_config
    assert len(world.made) == 5
    assert after.trial.spec.ds_config == {**own, PREFETCH: 5_000_000, PERSISTS: 1_000_000} == world.keys[-1]
    assert step_s(after) == pytest.approx(0.97 * 0.95 * world.last_s)


def test_a_key_that_costs_or_changes_nothing_is_never_among_those_taken_together(plan: Plan, cells: list[Cell]) -> None:
    shares = {
        (PREFETCH, 5_000_000): 1.0,
        (PREFETCH, 200_000_000): 1.02,
        (PERSISTS, 1_000_000): 0.95,
        (REDUCE, None): 1.1,
    }
    told = World(by_keys(shares), replays=True)
    before, after = refined(plan, cells, told)
    own = before.trial.spec.ds_config
    assert after.trial.spec.ds_config == {**own, PERSISTS: 1_000_000}
    assert all(len(keys.keys() - own.keys()) <= 1 for keys in told.keys)


def test_a_key_for_which_there_is_no_room_is_not_taken_however_fast(plan: Plan, cells: list[Cell]) -> None:
    world = World(by_keys(GAINS), replays=True, fits=lambda spec: PREFETCH not in spec.ds_config)
    before, after = refined(plan, cells, world)
    assert after.trial.spec.ds_config == {**before.trial.spec.ds_config, PERSISTS: 1_000_000}
    assert step_s(after) == pytest.approx(0.95 * step_s(before))


def test_keys_that_gain_nothing_leave_the_choice(plan: Plan, cells: list[Cell]) -> None:
    world = World(lambda _: 1.0, replays=True)
    before, after = refined(plan, cells, world)
    assert after.trial.spec == before.trial.spec
    assert step_s(after) == step_s(before)
    assert len(world.made) == 4


def test_where_no_order_is_known_no_key_is_tried(plan: Plan, cells: list[Cell]) -> None:
    world = World(by_keys(GAINS), replays=False)
    before, after = refined(plan, cells, world)
    assert after is before
    assert not world.made
