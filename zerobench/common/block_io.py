"""Bytes between this process and block devices, as counted by the kernel (/proc/self/io).

DeepSpeed's NVMe swapper opens its files with O_DIRECT, so its traffic is counted here as it happens, without page cache
hits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class BlockIo:
    """Bytes since the process started."""

    read_bytes: int
    written_bytes: int


def read_block_io() -> BlockIo | None:
    """Current counters; None if the kernel has none."""
    try:
        text = Path("/proc/self/io").read_text(encoding="ascii")
    except OSError:
        return None
    fields = dict(line.split(": ") for line in text.splitlines())
    return BlockIo(int(fields["read_bytes"]), int(fields["write_bytes"]))


def swap_file_bytes(folder: Path, rank: int) -> dict[str, int]:
    """Bytes in the swap files of rank `rank` under DeepSpeed's swap folder, by contents.

    DeepSpeed writes optimizer states to `.../optimizer/rank<r>/` (swap_tensor/optimizer_utils.py) and parameters to
    `.../zero_stage_3/<dtype>params/rank<r>/` (swap_tensor/partitioned_param_swapper.py).
    """
    sizes = {"optimizer": 0, "parameters": 0}
    for path in folder.glob(f"**/rank{rank}/*"):
        if path.is_file():
            sizes["optimizer" if path.parent.parent.name == "optimizer" else "parameters"] += path.stat().st_size
    return sizes
