"""Environments that were installed before the plugin moved load `zerobench.pytest_plugin`: the name stays."""

from zerobench.app.pytest_plugin import pytest_addoption, pytest_configure, zerobench_memory

__all__ = ["pytest_addoption", "pytest_configure", "zerobench_memory"]
