"""Imported once by the process that tests of the simulation are forked from: all that a simulated trial imports."""

from __future__ import annotations

import pytest

from zerobench.worker import simulator

__all__ = ["pytest"]

simulator._import_everything()
