"""Checkpoints by DeepSpeed's engines: a file of weights, or one for each layer of a pipeline, and beside it a file of
optimizer states of each rank that has some of its own.

DeepSpeed unpickles its files (runtime/checkpoint_engine/torch_checkpoint_engine.py, weights_only=False): they are read
only from the folder in which the ranks of the same trial have just written them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zerobench.checkpoint_files import ENGINE


def save_engine(engine: Any, folder: Path) -> None:
    """Write what `engine` (deepspeed/runtime/engine.py, save_checkpoint) keeps; called by all ranks."""
    engine.save_checkpoint(str(folder), tag=ENGINE, save_latest=False)


def load_engine(engine: Any, folder: Path, tag: str = ENGINE, *, optimizer: bool = True) -> None:
    """Read what was written under `tag`, with the optimizer's states unless told otherwise; called by all ranks.

    Raises RuntimeError: nothing is there.
    """
    loaded, _ = engine.load_checkpoint(str(folder), tag=tag, load_optimizer_states=optimizer)
    if loaded is None:
        raise RuntimeError(f"DeepSpeed found no checkpoint {tag} in {folder}")
