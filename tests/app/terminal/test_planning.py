"""What `zerobench plan` prints of what it found: edges of a frontier, what to type next, and as much as fits."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.report.sample_run import completed_trial, spec
from zerobench.app.search.plan_request import PlanRequest
from zerobench.app.terminal import planning
from zerobench.app.terminal.planning import _call_in_width, _edge, _next
from zerobench.config.derived.frontier import Frontier, Try
from zerobench.config.derived.frontier_axes import FRONTIERS
from zerobench.report.figures.make import trial_figures


def row(largest: int | None, too_large: int | None, needed: int | None) -> Any:
    edges = [None if edge is None else Try(edge, None) for edge in (largest, too_large)]
    frontier = Frontier(edges[0], edges[1], ())
    found = None if needed is None else SimpleNamespace(device=SimpleNamespace(needed_bytes=needed))
    return SimpleNamespace(label="zero2", frontier=frontier, row=found)


@pytest.mark.parametrize(("axis", "unit"), [("model", 1), ("micro-batch", 1), ("sequence-length", 128)])
def test_an_edge_is_told_in_values_of_its_axis(axis: str, unit: int) -> None:
    """A search counts sequences' lengths in steps of 128 tokens."""
    assert _edge(FRONTIERS[axis], row(3, 4, 77)) == {
        "configuration": "zero2", "largest": 3 * unit, "too_large": 4 * unit, "needed_bytes": 77
    }  # fmt: skip
    nothing = _edge(FRONTIERS[axis], row(None, 1, None))
    assert (nothing["largest"], nothing["too_large"], nothing["needed_bytes"]) == (None, unit, None)
    assert _edge(FRONTIERS[axis], row(3, None, 77))["too_large"] is None


WHOLE = "Next: deepspeed train.py --deepspeed_config ds.json"


@pytest.mark.parametrize(("width", "lines"), [
    (len(WHOLE), [WHOLE]),
    (len(WHOLE) - 1, ["Next: deepspeed train.py \\", "    --deepspeed_config ds.json"]),
])  # fmt: skip
def test_a_command_is_one_line_or_two_that_can_be_copied_as_one(
    monkeypatch: pytest.MonkeyPatch, width: int, lines: list[str]
) -> None:
    monkeypatch.setattr(planning, "screen_width", lambda: width)
    best = trial_figures(completed_trial(spec("zero1")))
    assert _next(best, Path("ds.json"), PlanRequest()) == lines


@pytest.mark.parametrize(("width", "lines"), [
    (31, ["Next: Args(bf16=True, lr=1 / 2)"]),
    (30, ["Next: Args(", "    bf16=True, lr=1 / 2)"]),
    (22, ["Next: Args(", "    bf16=True,", "    lr=1 / 2)"]),
])  # fmt: skip
def test_a_call_breaks_between_its_arguments_alone(
    monkeypatch: pytest.MonkeyPatch, width: int, lines: Sequence[str]
) -> None:
    monkeypatch.setattr(planning, "screen_width", lambda: width)
    assert _call_in_width("Next: ", "Args", ["bf16=True", "lr=1 / 2"]) == lines
