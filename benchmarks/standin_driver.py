"""The stand-in NVIDIA driver of the tests, as the benchmarks set it up where there is no real one."""

from __future__ import annotations

DEVICES = 8
LATENCY_US = 20
"""About as long as a real driver takes for a call."""


def scenario(devices: int = DEVICES, latency_us: int = LATENCY_US) -> str:
    """Idle GPUs (the header of tests/nvml_standin/fakenvml.c has the directives)."""
    return f"gpus {devices}\nlatency_us {latency_us}\n"
