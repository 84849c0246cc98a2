"""Facts about glibc's malloc."""

from __future__ import annotations

MAPPED_FROM_BYTES = 32 << 20
"""From which on malloc maps each block anew where it may keep what is freed: glibc's own largest bound."""
