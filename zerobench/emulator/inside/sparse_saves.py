"""Saves write the zeros of uncomputed tensors as holes: a checkpoint of 7B takes kilobytes of disk.

torch.save, by a path or into a file that the script has opened, and safetensors, which bypasses Python's files.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from fcntl import F_GETFL, fcntl
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

Tell = Callable[[int], object]
"""Receives the bytes of each saved file."""

_ZEROS = bytes(1 << 20)


class _SparseFile(io.FileIO):
    def write(self, data: Any) -> int:
        """Seek over zeros, a mebibyte at a time, and write the rest."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), len(_ZEROS)):
            part = bytes(view[start : start + len(_ZEROS)])
            if part == _ZEROS:
                self.seek(len(part), os.SEEK_CUR)
            else:
                super().write(part)
        return len(view)

    def fileno(self) -> NoReturn:
        # Refused: torch's older format would use it to bypass Python
        raise io.UnsupportedOperation("fileno")


def save_sparsely(torch: ModuleType, tell: Tell) -> None:
    """Make torch.save leave holes in the files that it writes."""
    save = torch.save

    @wraps(save)
    def saved(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(f, str | os.PathLike):
            with _SparseFile(f, "w") as file:
                save(obj, file, *args, **kwargs)
                file.truncate()
                tell(file.tell())
        elif _is_written_anywhere(f):
            _save_into(f, lambda file: save(obj, file, *args, **kwargs), tell)
        else:
            save(obj, f, *args, **kwargs)

    torch.save = saved  # type: ignore[attr-defined] # it has one


def _is_written_anywhere(f: object) -> bool:
    # A seekable file on a disk, such as from `open(path, "wb")`
    if not isinstance(f, io.BufferedWriter) or not isinstance(f.raw, io.FileIO):
        return False
    is_file = stat.S_ISREG(os.fstat(f.fileno()).st_mode)
    return is_file and not fcntl(f.fileno(), F_GETFL) & os.O_APPEND


def _save_into(f: io.BufferedWriter, save: Callable[[_SparseFile], object], tell: Tell) -> None:
    """Save from the file's position, and leave the position after it."""
    f.flush()
    begin = f.tell()
    with _SparseFile(os.dup(f.fileno()), "w") as file:
        save(file)
        end = file.tell()
    if os.fstat(f.fileno()).st_size < end:
        os.ftruncate(f.fileno(), end)
    f.seek(end)
    tell(end - begin)


def serialize_sparsely(safetensors: ModuleType, tell: Tell) -> None:
    """Make safetensors leave holes in the files that it writes; call it before `safetensors.torch` is imported."""
    serialize = safetensors.serialize_file

    @wraps(serialize)
    def serialized(tensors: Mapping[str, Any], filename: Any, metadata: Mapping[str, str] | None = None) -> None:
        if not all(hasattr(tensor, "data_ptr") for tensor in tensors.values()):  # a release before 0.8
            serialize(tensors, filename, metadata)
        else:
            _write(tensors, filename, metadata)
        tell(Path(filename).stat().st_size)

    safetensors.serialize_file = serialized  # type: ignore[attr-defined] # it has one


def _write(tensors: Mapping[str, Any], filename: Any, metadata: Mapping[str, str] | None) -> None:
    """Write the format: length of the header, header as JSON padded to a multiple of 8, the tensors' bytes.

    Larger elements first, as in safetensors itself, so that each tensor is aligned to its own.
    """
    ordered = sorted(tensors.items(), key=lambda item: (-_bits(item[1].dtype), item[0]))
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.data_len
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with _SparseFile(filename, "w") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            file.write((ctypes.c_char * tensor.data_len).from_address(tensor.data_ptr))
        file.truncate()


def _bits(dtype: str) -> int:
    """Bits of one element: 16 for `BF16`; a boolean, without a number, comes last."""
    number = re.search(r"\d+", dtype)
    return int(number[0]) if number else 0
