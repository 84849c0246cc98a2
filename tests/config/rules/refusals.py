"""Trials that are asked about before launch, and that they are refused."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.config.machines import CPU
from tests.tools.known import known
from zerobench.config.derived.machine import Machine
from zerobench.config.models.parameters import num_parameters
from zerobench.config.models.presets import resolve_model
from zerobench.config.rules.rules import Skip, find_skip
from zerobench.config.rules.situation import Situation
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec


class Asking:
    """Of a small Llama on two ranks, unless `usual` or a test says otherwise."""

    def __init__(self, **usual: Any) -> None:
        self.usual: dict[str, Any] = {"model": "llama-10m", "gpus_per_node": 2, **usual}

    def trial(self, **fields: Any) -> TrialSpec:
        """The trial of these fields; its model may be a name or a configuration."""
        asked = self.usual | fields
        if not isinstance(asked["model"], ModelSpec):
            asked["model"] = resolve_model(asked["model"])
        return TrialSpec.model_validate(asked)

    def skip(self, machine: Machine = CPU, **fields: Any) -> Skip | None:
        """Why it is refused on this machine; None where it is not."""
        spec = self.trial(**fields)
        return find_skip(Situation(spec, machine, num_parameters(spec.model)))

    def each_refused(self, *rows: Any) -> Any:
        """A test that each of these is refused: fields, rule and words of the reason, a machine before them or none."""
        return each_refused(self.skip, *rows)

    def each_allowed(self, *rows: Any) -> Any:
        """A test that each of these can run: fields, or a machine and fields."""

        @pytest.mark.parametrize("row", rows)
        def test(row: Any) -> None:
            *machine, fields = row if isinstance(row, tuple) else (row,)
            assert self.skip(*machine, **fields) is None

        return test

    def refused(self, rule: str, reason: str, machine: Machine = CPU, **fields: Any) -> None:
        """Assert that it is."""
        check_refused(self.skip(machine, **fields), rule, reason)


def check_refused(skip: Skip | None, rule: str, reason: str) -> None:
    """By this rule, in one line in which these words stand."""
    found = known(skip)
    assert found.rule == rule
    assert reason in found.reason
    assert "\n" not in found.reason


def each_refused(skip: Callable[..., Skip | None], *rows: Any) -> Any:
    """A test that `skip` refuses each of these: a row of fields, or a trial, with rule and words of the reason."""

    @pytest.mark.parametrize("row", rows, ids=lambda row: f"{row[-2]}: {row[-1]}")
    def test(row: Any) -> None:
        *machine, asked, rule, reason = row
        check_refused(skip(*machine, **asked) if isinstance(asked, dict) else skip(asked), rule, reason)

    return test
