"""DeepSpeed's compiled kernels for a simulated device: those that the emulated GPU has."""

from __future__ import annotations

from zerobench.emulator.inside.kernels import install, read_block_io, swap_file_bytes

__all__ = ["install", "read_block_io", "swap_file_bytes"]
