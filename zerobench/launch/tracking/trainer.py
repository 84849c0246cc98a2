"""The tracker as a callback of the Hugging Face Trainer: `trainer.add_callback(zerobench.TrainerCallback())`.

The Trainer gives its callbacks the bare model and not the engine around it, so the engine is found by identity: it is
the DeepSpeed engine of this process whose module is that model. Its calls are then observed as in any other loop.
"""

from __future__ import annotations

import gc
import warnings
from typing import Any

import deepspeed
import transformers

from zerobench.launch.tracking.tracker import Tracker, track


class TrainerCallback(transformers.TrainerCallback):  # type: ignore[misc] # transformers publishes no types
    """Tracks the engine of a Trainer that runs under DeepSpeed; the options are those of `zerobench.track`."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.tracker: Tracker | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 -- the Trainer's signature
        """Find the engine, which exists by now, and track it."""
        engine = find_engine(kwargs.get("model"))
        if engine is None:
            warnings.warn("zerobench: this Trainer does not use DeepSpeed; nothing is tracked", stacklevel=2)
            return
        self.tracker = track(engine, **self._options)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 -- as above
        """Mark the end of an optimizer step."""
        if self.tracker is not None:
            self.tracker.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 -- as above
        """Stop tracking: the training may have been shorter than the tracked steps."""
        if self.tracker is not None:
            self.tracker.close()


def find_engine(model: Any) -> Any:
    """Return the DeepSpeed engine of this process whose module is, or contains, `model`; None without one."""
    engines = [thing for thing in gc.get_objects() if issubclass(type(thing), deepspeed.DeepSpeedEngine)]
    around = (engine for engine in engines if engine.module is model)
    holding = (engine for engine in engines if any(module is model for module in engine.module.modules()))
    return model if issubclass(type(model), deepspeed.DeepSpeedEngine) else next(around, None) or next(holding, None)
