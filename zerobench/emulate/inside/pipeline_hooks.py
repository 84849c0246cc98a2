"""Sees forward, backward and step of DeepSpeed's pipeline engine, which takes a whole step in one call.

It goes through a list of instructions (deepspeed/runtime/pipe/engine.py, _INSTRUCTION_MAP); those that compute are
bracketed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from zerobench.tracking.engine_hooks import Listener


class PipelineHooks:
    """The instructions of one engine, wrapped on the instance alone."""

    def __init__(self, engine: Any, listener: Listener) -> None:
        self._engine = engine
        self._listener = listener

    def install(self) -> None:
        """Wrap those that compute."""
        wrap = {
            "ForwardPass": self._forward,
            "BackwardPass": self._backward,
            "ReduceGrads": self._backward,
            "OptimizerStep": self._step,
        }
        instructions = self._engine._INSTRUCTION_MAP
        ours = {
            instruction: wrap.get(instruction.__name__, _as_it_is)(run) for instruction, run in instructions.items()
        }
        self._engine._INSTRUCTION_MAP = ours

    def restore(self) -> None:
        """The class has its own still; a second call does nothing."""
        vars(self._engine).pop("_INSTRUCTION_MAP", None)

    def _forward(self, run: Callable[..., None]) -> Callable[..., None]:
        return self._told(run, lambda: self._listener.forward_begins((), {}), lambda: None)

    def _backward(self, run: Callable[..., None]) -> Callable[..., None]:
        return self._told(run, lambda: self._listener.backward_begins(None), self._listener.backward_ended)

    def _step(self, run: Callable[..., None]) -> Callable[..., None]:
        return self._told(run, self._listener.step_begins, self._listener.step_ended)

    def _told(
        self, run: Callable[..., None], before: Callable[[], None], after: Callable[[], None]
    ) -> Callable[..., None]:
        @wraps(run)
        def told(*args: Any, **kwargs: Any) -> None:
            try:
                before()
                run(*args, **kwargs)
                after()
            except BaseException as error:
                self._listener.failed(error)
                raise

        return told


def _as_it_is(run: Callable[..., None]) -> Callable[..., None]:
    return run
