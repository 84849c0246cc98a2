"""Files of weights that are not there: what transformers reads is their headers, and tensors without bytes.

safetensors makes tensors of a mapped file past torch's dispatcher, which a simulation would not see. Those of here are
simulated ones on the host that nobody counts, as the pages of a mapped file are nobody's memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from zerobench.worker.loading import TYPES

_TYPES = {name: dtype for dtype, name in TYPES.items()}

LeaveOut = Callable[[torch.Tensor], None]


@contextmanager
def files_without_values(mode: FakeTensorMode, leave_out: LeaveOut) -> Iterator[None]:
    """Let transformers open such files while open; `leave_out` is told of each tensor that it gets."""
    from transformers import modeling_utils

    real = modeling_utils.safe_open
    modeling_utils.safe_open = partial(_File, mode, leave_out)
    try:
        yield
    finally:
        modeling_utils.safe_open = real


class _File:
    """safetensors' safe_open (bindings/python/src/lib.rs), of the header alone."""

    def __init__(self, mode: FakeTensorMode, leave_out: LeaveOut, path: str, **_: Any) -> None:
        self._mode, self._leave_out = mode, leave_out
        with Path(path).open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        self._metadata = header.pop("__metadata__", None)
        self._tensors: dict[str, Any] = header

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def metadata(self) -> dict[str, str] | None:
        """What the header says of the file."""
        return self._metadata

    def keys(self) -> list[str]:
        """The names of the tensors."""
        return list(self._tensors)

    def get_slice(self, name: str) -> _Slice:
        """A tensor, not made yet."""
        return _Slice(partial(self.get_tensor, name), self._tensors[name])

    def get_tensor(self, name: str) -> torch.Tensor:
        """A tensor on the host, without bytes."""
        said = self._tensors[name]
        with _disable_current_modes():
            meta = torch.empty(said["shape"], dtype=_TYPES[said["dtype"]], device="meta")
            made = FakeTensor(self._mode, meta, torch.device("cpu"))
        self._leave_out(made)
        return made


class _Slice:
    """safetensors' PySafeSlice, of which transformers asks type, shape and all of it."""

    def __init__(self, make: Callable[[], torch.Tensor], said: dict[str, Any]) -> None:
        self._make, self._said = make, said

    def get_dtype(self) -> str:
        """As the header writes it."""
        return str(self._said["dtype"])

    def get_shape(self) -> list[int]:
        """Of the whole tensor."""
        return list(self._said["shape"])

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._make()[index]
