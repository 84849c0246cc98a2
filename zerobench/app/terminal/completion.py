"""Shell completion of argument values: models, GPUs, runs, axis values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

Complete = Callable[[str], list[str]]

REPORTS = Path("reports")
"""Default folder of runs."""


def _prefixed(names: Callable[[], Iterable[str]]) -> Complete:
    """Complete with those of `names` that start with the typed text; without a match the shell completes files."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def _listed_names(module: str, name: str) -> Callable[[], Iterable[str]]:
    """Names in a list of zerobench; its module is imported on completion only."""
    return lambda: getattr(import_module(f"zerobench.{module}"), name)


def _returned_names(module: str, name: str, *arguments: Any) -> Callable[[], Iterable[str]]:
    """Names returned by a function of zerobench; its module is imported on completion only."""
    return lambda: getattr(import_module(f"zerobench.{module}"), name)(*arguments)


def _gpus() -> Iterable[str]:
    """GPU names of the catalogue, with dashes for spaces."""
    from zerobench.config.hardware.hardware import load_catalogue

    # A shell would require quoting a space.
    return dict.fromkeys(gpu.name.lower().replace(" ", "-") for gpu in load_catalogue())


def _runs() -> Iterable[str]:
    from zerobench.records.store import runs_under

    return [path.name for path in runs_under(REPORTS)]


def _predictions() -> Iterable[str]:
    from zerobench.config.trial.trial import Evidence

    return [evidence for evidence in Evidence if evidence.is_predicted]


_sweeps = _returned_names("config.sweep.sweep", "shipped_sweeps")

_VALUES: dict[str, Callable[[], Iterable[str]]] = {
    "strategy": _listed_names("config.derived.strategy", "STRATEGIES"),
    "optimizer": _listed_names("config.trial.optimizers", "OPTIMIZERS"),
    "model": _listed_names("config.models.presets", "PRESETS"),
    "gpu": _gpus,
    "evidence": _listed_names("config.trial.trial", "Evidence"),
    "precision": _listed_names("config.trial.trial", "Precision"),
}
"""Possible values of the axes whose values are names."""


def axis_values(incomplete: str) -> list[str]:
    """Complete the last value of AXIS=VALUE,..."""
    # Not the axis: shells add a space after a completed word. Bash splits words at `=`.
    axis, _, values = incomplete.partition("=")
    *before, last = values.split(",")
    written = f"{axis}={','.join([*before, ''])}"
    names = _VALUES.get(axis, tuple)()
    return [f"{written}{name}" for name in names if name.startswith(last) and name not in before]


models = _prefixed(_VALUES["model"])
gpus = _prefixed(_gpus)
sweeps = _prefixed(_sweeps)
models_and_sweeps = _prefixed(lambda: [*_VALUES["model"](), *_sweeps()])
runs = _prefixed(_runs)
baselines = _prefixed(_returned_names("records.baselines", "baselines", REPORTS))
blocks = _prefixed(_listed_names("config.trial.trial", "Blocks"))
precisions = _prefixed(_VALUES["precision"])
predictions = _prefixed(_predictions)
strategies = _prefixed(lambda: [*_VALUES["strategy"](), *_VALUES["optimizer"]()])
