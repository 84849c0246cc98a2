"""Sees forward, backward and step of DeepSpeed's pipeline engine, which takes a whole step in one call.

It goes through a list of instructions (deepspeed/runtime/pipe/engine.py, _INSTRUCTION_MAP); those that compute are
bracketed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from zerobench.launch.tracking.engine_hooks import Hearing, Listener


class PipelineHooks(Hearing):
    """The instructions of one engine, wrapped on the instance alone."""

    def __init__(self, engine: Any, listener: Listener) -> None:
        self._engine = engine
        self._listener = listener

    def install(self) -> None:
        """Wrap those that compute."""
        hears = self._listener
        backward = lambda: hears.backward_begins(None), hears.backward_ended
        around = {
            "ForwardPass": (lambda: hears.forward_begins((), {}), lambda: None),
            "BackwardPass": backward,
            "ReduceGrads": backward,
            "OptimizerStep": (hears.step_begins, hears.step_ended),
        }
        self._engine._INSTRUCTION_MAP = {
            instruction: self._told(run, *around[instruction.__name__]) if instruction.__name__ in around else run
            for instruction, run in self._engine._INSTRUCTION_MAP.items()
        }

    def restore(self) -> None:
        """The class has its own still; a second call does nothing."""
        vars(self._engine).pop("_INSTRUCTION_MAP", None)

    def _told(
        self, run: Callable[..., None], before: Callable[[], None], after: Callable[[], None]
    ) -> Callable[..., None]:
        @wraps(run)
        def told(*args: Any, **kwargs: Any) -> None:
            with self._heard(self._listener):
                before()
                run(*args, **kwargs)
                after()

        return told
