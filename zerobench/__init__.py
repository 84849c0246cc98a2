"""zerobench: where every byte of a DeepSpeed ZeRO training run goes, and how fast it runs.

From Python: `zerobench.plan(...)`, `zerobench.tune(...)`, `zerobench.predict(...)`, `zerobench.run(...)`,
`zerobench.load(...)` (zerobench/app/api.py). Two names are for users' own training scripts, and need torch:
`zerobench.track(engine)` and, for the Hugging Face Trainer, `zerobench.TrainerCallback()`. All are imported when they
are asked for.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_GUARD = ("zerobench.launch.tracking.compilations", "guard_compilations")
"""Called where torch is there already: in a training script, whose engine may compile kernels before it is tracked."""

if "torch" in sys.modules:
    getattr(import_module(_GUARD[0]), _GUARD[1])()


def __getattr__(name: str) -> Any:
    """What is imported when it is asked for."""
    homes = dict.fromkeys(("plan", "tune", "predict", "load", "run"), "zerobench.app.api")
    homes |= {"track": "zerobench.launch.tracking.tracker", "TrainerCallback": "zerobench.launch.tracking.trainer"}
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(homes[name]), name)
