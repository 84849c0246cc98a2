"""Trials that are asked about before launch, and that they are refused."""

from typing import Any

from tests.spec.machines import CPU
from tests.tools.known import known
from zerobench.spec.machine import Machine
from zerobench.spec.model import ModelSpec
from zerobench.spec.parameters import num_parameters
from zerobench.spec.presets import resolve_model
from zerobench.spec.trial import TrialSpec
from zerobench.sweeping.rules import Skip, why_skipped
from zerobench.sweeping.situation import Situation


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
        return why_skipped(Situation(spec, machine, num_parameters(spec.model)))

    def refused(self, rule: str, reason: str, machine: Machine = CPU, **fields: Any) -> None:
        """Assert that it is."""
        check_refused(self.skip(machine, **fields), rule, reason)


def check_refused(skip: Skip | None, rule: str, reason: str) -> None:
    """By this rule, in one line in which these words stand."""
    found = known(skip)
    assert found.rule == rule
    assert reason in found.reason
    assert "\n" not in found.reason
