"""Writes down every key that DeepSpeed looks up in a configuration, by handing it a dict that listens."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.config_utils import DeepSpeedConfigModel

MARKER = "__probe__"
ABSENT = object()
"""The default of a key that was looked up with none."""


class HandedToModelError(Exception):
    """Stops a probe once its section reached a pydantic model."""


class Probe(dict[str, Any]):
    """A dict that writes every key looked up in it, at `path`, into `asked`."""

    def __init__(self, path: str, asked: dict[str, Any], content: dict[str, Any]) -> None:
        super().__init__(content)
        self.path = path
        self.asked = asked

    def note(self, key: object, default: Any = ABSENT) -> None:
        if not isinstance(key, str) or key == MARKER:
            return
        path = f"{self.path}.{key}" if self.path else key
        if self.asked.get(path, ABSENT) is ABSENT:
            self.asked[path] = default

    def __contains__(self, key: object) -> bool:
        self.note(key)
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.note(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.note(key, default)
        return super().get(key, default)

    def keys(self) -> Any:
        return self  # `key in section.keys()` is a look-up too

    def __iter__(self) -> Iterator[str]:
        return iter(list(super().keys()))

    def __bool__(self) -> bool:
        return True  # DeepSpeed passes over empty sections

    def __copy__(self) -> Probe:
        return self

    def __deepcopy__(self, memo: object) -> Probe:
        return self


def section_at(path: str, content: dict[str, Any], asked: dict[str, Any]) -> Probe:
    """A whole configuration in which only the section `path` stands, with `content`; it notes into `asked`."""
    inner = Probe(path, asked, content)
    parts = path.split(".") if path else []
    for depth in range(len(parts) - 1, -1, -1):
        inner = Probe(".".join(parts[:depth]), asked, {parts[depth]: inner})
    dict.setdefault(inner, "train_micro_batch_size_per_gpu", 1)  # without it DeepSpeed stops half way
    return inner


def probe(path: str) -> tuple[dict[str, Any], type[DeepSpeedConfigModel] | None]:
    """Keys that DeepSpeed looks up in the section `path`, and the model the section ends in, if it does."""
    asked: dict[str, Any] = {}
    model: type[DeepSpeedConfigModel] | None = None
    original = DeepSpeedConfigModel.__init__

    def init(self: DeepSpeedConfigModel, strict: bool = False, **data: Any) -> None:
        nonlocal model
        if MARKER in data:
            model = type(self)
            raise HandedToModelError
        original(self, strict=strict, **data)

    DeepSpeedConfigModel.__init__ = init
    try:
        for _ in range(2):  # some keys are only looked up where another one stands
            found = {key.rsplit(".", 1)[-1]: "probe" for key in below(path, asked)} if path else {}
            content: dict[str, Any] = {**found, MARKER: True} if path else {}
            with contextlib.suppress(Exception):  # nonsense values are refused sooner or later
                DeepSpeedConfig(section_at(path, content, asked))
    finally:
        DeepSpeedConfigModel.__init__ = original
    return below(path, asked), model


def below(path: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Of what was asked, the keys directly under `path`."""
    prefix = f"{path}." if path else ""
    return {k: v for k, v in asked.items() if k.startswith(prefix) and "." not in k[len(prefix) :] and k}
