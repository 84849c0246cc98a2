"""Runs functions where torch and DeepSpeed may be changed for good: in a process of their own."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.rank.real_ranks import RunTrial, trials_in_forks

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_S = 300.0

InFork = Callable[..., Any]


@pytest.fixture(scope="session")
def in_fork() -> Iterator[InFork]:
    """Call a test module's function in a fresh fork of a process that has imported torch and DeepSpeed.

    What the function returns, or raises, comes back by pickle; what it replaces of torch and DeepSpeed does not.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.rank.preloaded"])

    def call(function: Callable[..., Any], *arguments: object) -> Any:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            return pool.submit(function, *arguments).result(timeout=PATIENCE_S)

    with pytest.MonkeyPatch.context() as patch:
        paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))  # the process that forks looks for the preloaded module
        yield call


@pytest.fixture(scope="session")
def ran(in_fork: InFork, tmp_path_factory: pytest.TempPathFactory) -> RunTrial:
    """Run a trial's ranks, each in a process, once for all tests."""
    return trials_in_forks(in_fork, tmp_path_factory)
