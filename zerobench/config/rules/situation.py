"""Input of rules: a trial, its machine, and the size of its model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zerobench.config.derived.machine import Accelerator, Machine
from zerobench.config.trial.trial import Evidence, Offload, TrialSpec


@dataclass(frozen=True)
class Situation:
    trial: TrialSpec
    machine: Machine
    num_params: int | None
    """Parameters of the model; None without a closed form."""

    @property
    def uses_gpus(self) -> bool:
        """Return whether ranks compute on GPUs: this machine's, or the one of the prediction."""
        if self.trial.evidence.needs_device:
            return self.machine.accelerator is Accelerator.CUDA
        return self.trial.prediction.gpu is not None

    @property
    def processes_per_node(self) -> int:
        """Ranks of one node that are processes."""
        return self.trial.gpus_per_node if self.trial.evidence is Evidence.MEASURED else 1

    @property
    def offloads(self) -> str:
        """The trial's offload as a phrase; empty without any."""
        trial = self.trial
        places = {"offload_optimizer": trial.offload_optimizer, "offload_param": trial.offload_param}
        return " and ".join(f"{axis} {place}" for axis, place in places.items() if place is not Offload.NONE)

    @property
    def swaps(self) -> bool:
        """Return whether anything is offloaded to NVMe."""
        return Offload.NVME in self.trial.offloaded_to


Rule = Callable[[Situation], str | None]
"""Returns the reason why the situation cannot run, or None."""


def rules_of(module: Mapping[str, Any], before: Mapping[str, Mapping[str, Rule]] | None = None) -> dict[str, Rule]:
    """Collect the rules of a module: its private functions of a single situation that return a reason or None.

    Rules are keyed by name without the underscore, in the order of the source. `before` inserts other rules before some
    of them. Raises LookupError if `before` names no rule of the module.
    """
    rules: dict[str, Rule] = {}
    others = dict(before or {})
    for name, value in module.items():
        annotations = getattr(value, "__annotations__", {}) if name.startswith("_") else {}
        if list(annotations) == ["s", "return"] and str(annotations["return"]) == "str | None":
            rules |= {**others.pop(name[1:], {}), name[1:]: value}
    if others:
        raise LookupError(f"before: {', '.join(others)}: no rule; choices: {', '.join(rules)}")
    return rules
