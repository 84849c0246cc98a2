"""What a rank says of itself while it runs, for the runner's live view and for stack dumps on timeout."""

from __future__ import annotations

from pydantic import BaseModel


class Progress(BaseModel):
    """Rewritten by each rank as it goes (folder.TrialFolder.progress)."""

    rank: int
    pid: int
    hostname: str
    phase: str
    """`import`, `init`, `warmup`, `timed`, `memory`, `compile`, `done`."""
    step_index: int
    num_steps: int
    memory_bytes: int | None
    updated_at_s: float
