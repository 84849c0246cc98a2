"""What a shell completes beside commands and options: the names that they take."""

# ruff: noqa: PLC0415 -- imports stand in what asks: `zerobench --help` waits for none of them

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

Complete = Callable[[str], list[str]]

REPORTS = Path("reports")
"""Where run folders lie unless said otherwise."""


def _beginning(names: Callable[[], Iterable[str]]) -> Complete:
    """Those of `names` that begin with what was typed; none leaves the shell to complete files."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def _models() -> Iterable[str]:
    from zerobench.spec.presets import PRESETS

    return PRESETS


def _sweeps() -> Iterable[str]:
    from zerobench.spec.sweep import shipped_sweeps

    return shipped_sweeps()


def _runs() -> Iterable[str]:
    from zerobench.store import runs_under

    return [path.name for path in runs_under(REPORTS)]


def _baselines() -> Iterable[str]:
    from zerobench.baselines import baselines

    return baselines(REPORTS)


def _strategies() -> Iterable[str]:
    from zerobench.spec.optimizers import OPTIMIZERS
    from zerobench.spec.strategy import STRATEGIES

    return [*STRATEGIES, *OPTIMIZERS]


models = _beginning(_models)
sweeps = _beginning(_sweeps)
models_and_sweeps = _beginning(lambda: [*_models(), *_sweeps()])
runs = _beginning(_runs)
baselines = _beginning(_baselines)
strategies = _beginning(_strategies)
