"""What lies between the ZeRO paper's closed form and the ledger of a simulated rank, in lines that add up.

Causes are computed from the model's tensors alone, and only then set against the ledger: what they leave over has a
line of its own, so that a cause which is wrong or missing shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.prediction.simulated import device_rows, num_params
from zerobench.common.vocabulary import Category, Phase, StepKind
from zerobench.config.deepspeed import build_ds_config
from zerobench.config.deepspeed.case import Case
from zerobench.config.derived.zero_paper import ModelStates, model_states
from zerobench.config.models.tensors import parameter_tensors
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.memory.deepspeed import Setting
from zerobench.records.records import RankRecord

Lines = Mapping[str, float]
"""Bytes by what they are, in order."""

LEFT_OVER = "not explained by these lines"

NORM_BYTES = 4
"""_global_grad_norm, an fp32 scalar that step() makes (stage_1_and_2.py) and the ledger counts with the gradients."""

_OPTIMIZER = (Category.MASTER_WEIGHTS, Category.FIRST_MOMENT, Category.SECOND_MOMENT, Category.OTHER_OPTIMIZER_STATES)
_MODEL_STATES = (Category.PARAMETERS, Category.GRADIENTS, *_OPTIMIZER)


@dataclass(frozen=True)
class Cell:
    """One stage on one number of ranks: a trial that was simulated, and its record."""

    trial: TrialSpec
    rank: RankRecord

    @property
    def stage(self) -> int:
        """ZeRO stage."""
        return self.trial.zero_stage or 0

    @property
    def formula(self) -> ModelStates:
        """The paper's model states with the model's exact parameters."""
        return model_states(num_params(self.rank), self.trial.world_size, self.stage)

    @property
    def end_of_backward(self) -> dict[Category, int]:
        """Live bytes of a steady step when gradients and optimizer states are all there."""
        rows = device_rows(self.rank, StepKind.STEADY, Phase.BACKWARD)
        return {category: row.live_bytes for category, row in rows.items()}

    @property
    def states_bytes(self) -> int:
        """Model states by the ledger."""
        return sum(self.end_of_backward.get(category, 0) for category in _MODEL_STATES)

    @property
    def peak(self) -> tuple[Phase, dict[Category, int]]:
        """The phase of the steady step's peak, and what lay on the device at that instant."""
        phases = {phase: device_rows(self.rank, StepKind.STEADY, phase) for phase in Phase if phase is not Phase.INIT}
        highest = max(phases, key=lambda phase: phases[phase][Category.TOTAL].at_peak_bytes or 0)
        return highest, {category: row.at_peak_bytes or 0 for category, row in phases[highest].items()}


def setting_of(trial: TrialSpec) -> Setting:
    """What the causes of a trial are functions of."""
    tensors = parameter_tensors(trial.model)
    case = Case(build_ds_config(trial), trial.world_size, sum(tensors))
    return Setting(case=case, tensors=tensors, optimizer=trial.optimizer, rank=trial.prediction.rank)


def causes(setting: Setting) -> dict[str, float]:
    """Why DeepSpeed's model states at the end of backward are not the paper's, in bytes, for 16-bit Adam.

    stage_1_and_2.py pads the flat parameters to two elements a rank, and keeps the gradient of every tensor that
    reaches into the own partition whole (get_partition_info, copy_grads_in_partition), with zeros for the padding
    (get_flat_partition); stage3.py pads each tensor to the number of ranks (partition_parameters.py, _aligned_size).
    """
    stage, world_size, whole = setting.case.stage, setting.case.world_size, setting.num_params
    share = whole / world_size
    if stage == 0:
        return {}
    if stage == 3:
        return {"each tensor padded to N: 2 + 2 + 12 bytes an element": 16 * (setting.sharded - share)}
    padded = setting.flat_partition
    across = sum(tensor - inside for tensor, inside in setting.own_tensors)
    freed = -2 * (whole - share) if stage == 1 else 0.0
    return {
        "gradients of other partitions, freed once they are reduced": freed,
        "parameters padded to 2N elements: 2 bytes each": 2.0 * (padded * world_size - whole),
        "this rank's part of the padding: 2 + 12 bytes an element": 14 * (padded - share),
        "gradients of tensors across the partition's edge, kept whole": 2.0 * across,
        "the norm of the gradients, kept from the step before": float(NORM_BYTES),
    }


def from_formula_to_ledger(cell: Cell) -> dict[str, float]:
    """From the paper's model states to the ledger's at the end of backward."""
    why = causes(setting_of(cell.trial))
    return {
        "model states by the paper": cell.formula.total_bytes,
        **why,
        LEFT_OVER: cell.states_bytes - cell.formula.total_bytes - sum(why.values()),
        "model states by the ledger": cell.states_bytes,
    }


def all_of_the_device(cell: Cell) -> dict[str, float]:
    """The device at the end of backward."""
    return {"model states": float(cell.states_bytes)} | _beside_the_states(cell.end_of_backward)


def at_the_peak(cell: Cell) -> dict[str, float]:
    """From the paper's model states to the steady step's peak."""
    _, held = cell.peak
    formula = cell.formula
    optimizer = sum(held.get(category, 0) for category in _OPTIMIZER)
    both = sum(held.get(category, 0) for category in (Category.PARAMETERS, Category.GRADIENTS))
    copied = both - formula.parameters_bytes - formula.gradients_bytes
    return {
        "model states by the paper": formula.total_bytes,
        "parameters, gradients and copies of them, beyond the paper's": copied,
        "optimizer states beyond the paper's": optimizer - formula.optimizer_bytes,
        **_beside_the_states(held),
    }


def _beside_the_states(held: Mapping[Category, int]) -> dict[str, float]:
    """What of one instant is no model state, by category, and the whole device last."""
    skipped = {Category.TOTAL, *_MODEL_STATES}
    beside = {c.value.replace("_", " "): float(held.get(c, 0)) for c in Category if c not in skipped}
    return {**beside, "the device": float(held[Category.TOTAL])}
