"""Files of weights that are not there: what transformers reads is their headers, and tensors without bytes.

safetensors makes tensors of a mapped file past torch's dispatcher, which a simulation would not see. Those of here are
simulated ones on the host that nobody counts, as the pages of a mapped file are nobody's memory.
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
    """Let transformers open such files while open; `leave_out` is told of each tensor that it gets."""
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
        """What the header says of the file."""
        return self._metadata

    def keys(self) -> list[str]:
        """The names of the tensors."""
        return list(self._tensors)

    def get_slice(self, name: str) -> LazySlice:
        """A tensor, not made yet."""
        header = self._tensors[name]
        return LazySlice(partial(self.get_tensor, name), str(header["dtype"]), list(header["shape"]))

    def get_tensor(self, name: str) -> torch.Tensor:
        """A tensor on the host, without bytes."""
        header = self._tensors[name]
        with _disable_current_modes():
            meta = torch.empty(header["shape"], dtype=_TYPES[header["dtype"]], device="meta")
            made = FakeTensor(self._mode, meta, torch.device("cpu"))
        self._leave_out(made)
        return made
