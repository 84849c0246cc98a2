"""Weight files without values: transformers reads their headers, and gets tensors without bytes.

safetensors creates tensors of a mapped file past torch's dispatcher, out of sight of a simulation. These are simulated
tensors on the host, excluded from the count like the pages of a mapped file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from zerobench.rank.training.loading import TYPES, LazySlice, opened_by

_TYPES = {name: dtype for dtype, name in TYPES.items()}

LeaveOut = Callable[[torch.Tensor], None]


def files_without_values(mode: FakeTensorMode, leave_out: LeaveOut) -> AbstractContextManager[None]:
    """Make transformers open such files while open; calls `leave_out` with each tensor."""
    return opened_by(partial(_File, mode, leave_out))


class _File:
    """safetensors' safe_open (bindings/python/src/lib.rs), of the header alone."""

    def __init__(self, mode: FakeTensorMode, leave_out: LeaveOut, path: str, **_: Any) -> None:
        self._mode, self._leave_out = mode, leave_out
        with Path(path).open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        self._metadata: dict[str, str] | None = header.pop("__metadata__", None)
        self._tensors: dict[str, Any] = header

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def metadata(self) -> dict[str, str] | None:
        """Metadata in the header."""
        return self._metadata

    def keys(self) -> list[str]:
        """The names of the tensors."""
        return list(self._tensors)

    def get_slice(self, name: str) -> LazySlice:
        """Return a slice whose tensor is created on access."""
        header = self._tensors[name]
        return LazySlice(partial(self.get_tensor, name), str(header["dtype"]), list(header["shape"]))

    def get_tensor(self, name: str) -> torch.Tensor:
        """Return a tensor on the host, without bytes."""
        header = self._tensors[name]
        with _disable_current_modes():
            meta = torch.empty(header["shape"], dtype=_TYPES[header["dtype"]], device="meta")
            tensor = FakeTensor(self._mode, meta, torch.device("cpu"))
        self._leave_out(tensor)
        return tensor
