"""The rows of schema.CHECKPOINTS: what a trial tells by itself, then its distance from trials that were read before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from zerobench.records import Recovery
from zerobench.report.recovery import Transfers, distance, resumed, uninterrupted_losses
from zerobench.report.trials import LossesOnly, Trial

Row = dict[str, Any]


@dataclass(frozen=True)
class ResumedRow:
    """The row of one trial, while the other trials of its run are still to be read."""

    values: Row
    recovery: Recovery
    losses: LossesOnly

    @classmethod
    def of(cls, trial: Trial, losses: LossesOnly) -> Iterator[ResumedRow]:
        """The row of `trial`, whose losses are `losses`; none where it was not saved and resumed."""
        found, recovery = resumed(trial, ()), trial.record.recovery
        if found is None or recovery is None:
            return
        values = {
            "run_id": trial.record.run_id,
            "trial_id": trial.record.trial_id,
            "num_saves": found.num_saves,
            "size_bytes": found.save and found.save.size_bytes,
            "formula_bytes": found.formula_bytes,
            **_of("save", found.save),
            **_of("load", found.load),
            "resumed_world_size": found.world_size,
            "from_step": found.from_step,
            "convert_s": found.convert_s,
            "loss_difference": None,
            "steps_lost": found.steps_lost,
            "recover_s": found.recover_s,
            "restart_s": found.restart_s,
        }
        yield cls(values, recovery, losses)

    def judged(self, trials: Sequence[LossesOnly]) -> Row:
        """The row with its distance from the same work without a fault."""
        return {
            **self.values,
            "loss_difference": distance(self.recovery, uninterrupted_losses(self.losses, trials)),
        }


def _of(name: str, one: Transfers | None) -> Row:
    return {
        f"{name}_s": one and one.seconds,
        f"{name}_bytes_per_s": one and one.bytes_per_s,
        f"{name}_host_bytes": one and one.host_bytes,
        f"{name}_device_bytes": one and one.device_bytes,
    }
