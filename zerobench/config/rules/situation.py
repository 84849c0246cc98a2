"""What rules look at: a trial, the machine that it is laid out for, and the size of its model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zerobench.config.derived.machine import Accelerator, Machine
from zerobench.config.trial.trial import Evidence, Offload, TrialSpec


@dataclass(frozen=True)
class Situation:
    """What rules look at."""

    trial: TrialSpec
    machine: Machine
    num_params: int | None
    """Parameters of the model; None where no closed form is known."""

    @property
    def on_gpu(self) -> bool:
        """Whether ranks compute on GPUs: this machine's, or the one that the prediction is for."""
        if self.trial.evidence.needs_device:
            return self.machine.accelerator is Accelerator.CUDA
        return self.trial.prediction.gpu is not None

    @property
    def processes_per_node(self) -> int:
        """Ranks of one node that are processes, whatever the world size."""
        return self.trial.gpus_per_node if self.trial.evidence is Evidence.MEASURED else 1

    @property
    def offloads(self) -> str:
        """The offload asked for, for sentences; empty without any."""
        trial = self.trial
        places = {"offload_optimizer": trial.offload_optimizer, "offload_param": trial.offload_param}
        return " and ".join(f"{axis} {place}" for axis, place in places.items() if place is not Offload.NONE)

    @property
    def swaps(self) -> bool:
        """Whether anything is offloaded to NVMe."""
        return Offload.NVME in self.trial.offloaded_to


Rule = Callable[[Situation], str | None]
"""The reason why the situation cannot run, or None."""


def rules_of(module: Mapping[str, Any], before: Mapping[str, Mapping[str, Rule]] | None = None) -> dict[str, Rule]:
    """The rules that a module holds, by their names without the underscore, in the order in which they stand: its
    private functions of a situation alone that give a reason or None. `before` has others come before some of them.

    Raises LookupError: `before` names what is no rule of the module.
    """
    made: dict[str, Rule] = {}
    others = dict(before or {})
    for name, value in module.items():
        said = getattr(value, "__annotations__", {}) if name.startswith("_") else {}
        if list(said) == ["s", "return"] and str(said["return"]) == "str | None":
            made |= {**others.pop(name[1:], {}), name[1:]: value}
    if others:
        raise LookupError(f"before: {', '.join(others)}: no rule; choices: {', '.join(made)}")
    return made
