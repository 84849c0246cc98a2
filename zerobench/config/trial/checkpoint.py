"""Checkpoints and faults: after which steps a trial saves, how a rank of it dies, and on how many ranks it goes on.

A trial with a checkpoint is two launches. The first trains and saves; it goes on to its end, so that what comes after
the last checkpoint is known, or one of its ranks is killed. The second, in fresh processes, loads the last checkpoint
and goes on to the end. Data, learning rate and global batch are functions of the step, so nothing else is saved.
"""

from typing import Annotated

from pydantic import Field

from zerobench.config.trial.base import Spec

_Positive = Annotated[int, Field(ge=1, le=2**31 - 1, strict=True)]


class FaultSpec(Spec):
    """A rank that dies by SIGKILL in mid-run."""

    rank: Annotated[int, Field(ge=0, le=2**20, strict=True)]
    step: _Positive
    """Optimizer steps that are done when it dies: it does not take part in the next one."""


class CheckpointSpec(Spec):
    """When a trial saves, and how it is resumed."""

    every_steps: _Positive
    """Optimizer steps between two saves. After the last step nothing is saved: there would be nothing to go on with."""
    resume_world_size: _Positive | None = None
    """Ranks that the second launch has, on one node; None: as many as the first. The global batch stays."""
    fault: FaultSpec | None = None
    """Without one the first launch goes on to its end."""
    folder: str | None = None
    """Where checkpoints are written to, a folder that all ranks see; None: the trial's own. They are the machine's
    affair and not the work's, like `keep`."""
    keep: bool = False
    """Whether the last checkpoint stays when all is measured."""

    def __str__(self) -> str:
        """As filters and names write it: `every 4 steps`, `every 4 steps; resumed on 1; rank 1 killed at 6`."""
        parts = [f"every {self.every_steps} steps"]
        if self.resume_world_size is not None:
            parts.append(f"resumed on {self.resume_world_size}")
        if self.fault is not None:
            parts.append(f"rank {self.fault.rank} killed at {self.fault.step}")
        return "; ".join(parts)

    def last_step(self, num_steps: int) -> int:
        """Steps that the checkpoint holds from which the second launch goes on; 0 where there is none by then."""
        end = num_steps if self.fault is None else self.fault.step + 1
        return (end - 1) // self.every_steps * self.every_steps
