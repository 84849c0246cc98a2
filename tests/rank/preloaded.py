"""Imported once by the process that tests of the simulation are forked from: all that a simulated trial imports."""

import pytest
import torch.distributed.optim  # compiles parts of itself by TorchScript, which simulated functions would not pass

from zerobench.config.trial.trial import Evidence
from zerobench.rank.loop import simulator

__all__ = ["pytest", "torch"]

simulator.import_everything(Evidence.SIMULATED)
