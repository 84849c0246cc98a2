"""Checkpoints by DeepSpeed's engines: a file of weights, or one for each layer of a pipeline, and beside it a file of
optimizer states of each rank that has some of its own.

DeepSpeed unpickles its files (runtime/checkpoint_engine/torch_checkpoint_engine.py, weights_only=False): they are read
only from the folder in which the ranks of the same trial have just written them.
"""

from pathlib import Path
from typing import Any

from zerobench.records.checkpoint_files import ENGINE


def save_engine(engine: Any, folder: Path, *, trains_all: bool = True) -> None:
    """Write what `engine` (deepspeed/runtime/engine.py, save_checkpoint) keeps, without what is frozen; called by all
    ranks.
    """
    engine.save_checkpoint(str(folder), tag=ENGINE, save_latest=False, exclude_frozen_parameters=not trains_all)


def load_engine(
    engine: Any, folder: Path, tag: str = ENGINE, *, optimizer: bool = True, trains_all: bool = True
) -> None:
    """Read what was written under `tag`, with the optimizer's states unless told otherwise; called by all ranks. What
    is frozen stays as the model was built.

    Raises RuntimeError: nothing is there.
    """
    loaded, _ = engine.load_checkpoint(
        str(folder), tag=tag, load_optimizer_states=optimizer, load_module_strict=trains_all
    )
    if loaded is None:
        raise RuntimeError(f"DeepSpeed found no checkpoint {tag} in {folder}")
