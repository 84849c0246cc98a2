"""Imported once by the process that tests of the simulation are forked from: all that a simulated trial imports."""

from __future__ import annotations

import pytest as _pytest  # noqa: F401 -- each fork imports the module of the test that it runs

from zerobench.worker import simulator

simulator._import_everything()
