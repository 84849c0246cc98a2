"""Checkpoints and faults: steps between saves, a killed rank, and the ranks of the resumed launch.

A trial with a checkpoint has two launches. The first trains and saves; it runs to its end, so that the losses after the
last checkpoint are known, or one of its ranks is killed. The second, in fresh processes, loads the last checkpoint and
runs to the end. Data, learning rate and global batch are functions of the step, so nothing else is saved.
"""

from typing import Annotated

from pydantic import Field

from zerobench.config.trial.base import Spec

_Positive = Annotated[int, Field(ge=1, le=2**31 - 1, strict=True)]


class FaultSpec(Spec):
    """A rank killed by SIGKILL in mid-run."""

    rank: Annotated[int, Field(ge=0, le=2**20, strict=True)]
    step: _Positive
    """Optimizer steps completed before it is killed: it does not take part in the next one."""


class CheckpointSpec(Spec):
    """Saves of a trial, and its resumption."""

    every_steps: _Positive
    """Optimizer steps between two saves. Nothing is saved after the last step: there would be nothing to resume."""
    resume_world_size: _Positive | None = None
    """Ranks of the second launch, on one node; None: as many as the first. The global batch stays."""
    fault: FaultSpec | None = None
    """Without one the first launch runs to its end."""
    folder: str | None = None
    """Folder of checkpoints that all ranks see; None: the trial's own. It depends on the machine and is not part of the
    work, like `keep`."""
    keep: bool = False
    """Whether the last checkpoint stays after the measurement."""

    def __str__(self) -> str:
        """In filters and names: `every 4 steps`, `every 4 steps; resumed on 1; rank 1 killed at 6`."""
        parts = [f"every {self.every_steps} steps"]
        if self.resume_world_size is not None:
            parts.append(f"resumed on {self.resume_world_size}")
        if self.fault is not None:
            parts.append(f"rank {self.fault.rank} killed at {self.fault.step}")
        return "; ".join(parts)

    def last_step(self, num_steps: int) -> int:
        """Steps in the checkpoint that the second launch loads; 0 if there is none by then."""
        end = num_steps if self.fault is None else self.fault.step + 1
        return (end - 1) // self.every_steps * self.every_steps
