"""torch.save writes the zeros of tensors that nobody computed as holes: a checkpoint of 7B takes kilobytes of disk."""

from __future__ import annotations

import io
import os
from functools import wraps
from typing import Any

import torch

_ZEROS = bytes(1 << 20)


class _SparseFile(io.FileIO):
    def write(self, data: Any) -> int:
        """Seek over what is zero, a mebibyte at a time, and write the rest."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), len(_ZEROS)):
            part = bytes(view[start : start + len(_ZEROS)])
            if part == _ZEROS:
                self.seek(len(part), os.SEEK_CUR)
            else:
                super().write(part)
        return len(view)


def save_sparsely() -> None:
    """From now on torch.save leaves holes in the files that it opens itself, but in its older format."""
    save = torch.save

    @wraps(save)
    def saved(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(f, str | os.PathLike):
            return save(obj, f, *args, **kwargs)
        with _SparseFile(f, "w") as file:
            save(obj, file, *args, **kwargs)
            file.truncate()
        return None

    torch.save = saved
