"""Observe forward, backward and step of a DeepSpeed engine in the user's own loop.

The engine's methods are wrapped on the instance alone and restored when tracking ends. The Hugging Face Trainer and
accelerate call these same methods (accelerate/utils/deepspeed.py, DeepSpeedEngineWrapper.backward), so one way serves
all of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Protocol

_WRAPPED = ("forward", "backward", "step")


class Listener(Protocol):
    """Receives an engine's calls, in the thread that makes them."""

    def forward_begins(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """A forward pass in training begins."""

    def forward_ended(self, output: Any) -> None:
        """A forward pass ended; the loss may still be computed from `output`."""

    def backward_begins(self, loss: Any) -> None:
        """A backward pass begins."""

    def backward_ended(self) -> None:
        pass

    def step_begins(self) -> None:
        """The update at the end of an accumulation begins."""

    def step_ended(self) -> None:
        """The optimizer step ended."""

    def failed(self, error: BaseException) -> None:
        """A call raised `error`, which goes on to the caller."""


class Hearing:
    """Passes calls on to a listener."""

    _depth = 0
    """Number of nested calls in progress."""

    @contextmanager
    def _heard(self, listener: Listener) -> Iterator[None]:
        """Pass an exception to the listener on its way."""
        self._depth += 1
        try:
            yield
        except BaseException as error:
            listener.failed(error)
            raise
        finally:
            self._depth -= 1


class EngineHooks(Hearing):
    """The wrapped methods of one engine."""

    def __init__(self, engine: Any, listener: Listener) -> None:
        self._reference = weakref.ref(engine)
        self._listener = listener
        self._had_own: set[str] = set()
        self._ours: dict[str, weakref.ref[Any]] = {}

    def install(self) -> None:
        """Wrap the methods; the wrappers keep the instance's own attributes of these names, for `restore`."""
        engine = self._reference()
        wrappers = {"forward": self._forward, "backward": self._backward, "step": self._step}
        attributes = vars(engine)
        self._had_own = {name for name in _WRAPPED if name in attributes}
        for name in _WRAPPED:
            attributes[name] = wrapper = wrappers[name](getattr(engine, name))
            self._ours[name] = weakref.ref(wrapper)

    def restore(self) -> None:
        """Restore the methods; a second call does nothing."""
        engine, ours = self._reference(), self._ours
        self._ours = {}
        if engine is None:
            return
        attributes = vars(engine)
        for name, reference in ours.items():
            wrapper = reference()
            if wrapper is not None and attributes.get(name) is wrapper:  # what others wrapped around it meanwhile stays
                del attributes[name]
                attributes.update({name: wrapper.__wrapped__} if name in self._had_own else {})

    def _forward(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def forward(*args: Any, **kwargs: Any) -> Any:
            engine = self._reference()
            if engine is None or not engine.training or self._depth:
                return call(*args, **kwargs)
            with self._heard(self._listener):
                self._listener.forward_begins(args, kwargs)
                output = call(*args, **kwargs)
                self._listener.forward_ended(output)
            return output

        return forward

    def _backward(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
            with self._heard(self._listener):
                self._listener.backward_begins(loss)
                result = call(loss, *args, **kwargs)
                self._listener.backward_ended()
            return result

        return backward

    def _step(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def step(*args: Any, **kwargs: Any) -> Any:
            if not self._is_boundary():
                return call(*args, **kwargs)
            with self._heard(self._listener):
                self._listener.step_begins()
                result = call(*args, **kwargs)
                self._listener.step_ended()
            return result

        return step

    def _is_boundary(self) -> bool:
        """Return True if this call of `step` updates: the engine counts micro-steps, unless its user does."""
        engine: Any = self._reference()
        managed = getattr(engine, "managed_gradient_accumulation", None)
        return bool(engine.is_gradient_accumulation_boundary()) or (managed is not None and not managed())
