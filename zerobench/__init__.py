"""zerobench: where every byte of a DeepSpeed ZeRO training run goes, and how fast it runs.

Two names are for users' own training scripts, and imported when they are asked for, since they need torch:
`zerobench.track(engine)` and, for the Hugging Face Trainer, `zerobench.TrainerCallback()`.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`track` and `TrainerCallback`, which bring torch with them."""
    from importlib import import_module  # noqa: PLC0415 -- `import zerobench` stays light

    homes = {"track": "zerobench.tracking.tracker", "TrainerCallback": "zerobench.tracking.trainer"}
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(homes[name]), name)
