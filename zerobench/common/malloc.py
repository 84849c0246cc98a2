"""Facts about glibc's malloc."""

from __future__ import annotations

MAPPED_FROM_BYTES = 32 << 20
"""Size from which malloc maps each block separately even if it keeps freed memory: glibc's largest threshold."""
