"""Which tests share a process, in what order, and which have the machine to themselves.

`make test` runs two or three processes of pytest-xdist at a time, since a test that starts processes mostly waits for
them, and then the few tests that measure time by itself. `pytest` alone runs all of them in one process, as ever.

A file's tests stay in one process, so that what a module's fixtures made is made once; files that read the same
expensive run, or the same cluster, are one group. DeepSpeed's kernels are compiled in the background from the start
(kernels.py), so what needs none comes first, and what needs them follows, the longest before the shorter, so that all
processes end at about the same time.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.fast_tier import MARKER, holds_fast_tests, is_fast

ALONE = {
    "tests/rank/nvml/test_sampler.py": "intervals of milliseconds, kept by a process of its own",
    "tests/benchmarks/test_sampler_cost.py": "processor time of one sampler",
    "tests/report/documents/page/test_scale.py": "a page opens in a second",
    "tests/launch/run/test_tree.py": "half a second of patience, neither less nor much more",
}
"""What runs by itself, and why: the beginnings of test names."""

SLURM = "slurm"
"""Marker of the tests of one cluster, and the name of their group. They wait more than they compute."""

WITHOUT_KERNELS = (
    "tests/launch/run",
    "tests/launch/machine",
    "tests/launch/setup",
    "tests/rank",
    "tests/report",
    "tests/trials/test_plan.py",
)
"""The longest of what needs no kernels: it runs while they are compiled."""

WITH_KERNELS = (
    "tests/trials/test_quickstart.py",
    "tests/trials/test_parity.py",
    "tests/trials/test_checkpoints.py",
    "tests/trials/test_frontier.py",
    "tests/launch/tracking/test_tracker.py",
    "tests/rank/strategies/test_one_rank.py",
    "tests/trials/test_worlds.py",
    "tests/config/deepspeed/test_shipped_run.py",
    "tests/trials/test_offload.py",
    "tests/benchmarks/test_overhead.py",
    "tests/rank/training/test_grad_norms.py",
    "tests/rank/ledger/test_engine_walks.py",
    "tests/rank/ledger/test_engine_tensors.py",
)
"""Real ranks. The last ones need kernels that are compiled last. Files of the folders above are among them: while they
waited for a compiler, up to five minutes, their process did nothing else."""

THEN = (
    "tests/emulator/test_scripts.py",
    "tests/trials",
    "tests/estimate/time",
    "tests/estimate/clock",
    "tests/benchmarks/mutants",
    "tests/app/terminal",
    "tests/app/search",
    "tests/launch/tracking",
    "tests/emulator",
    "tests/estimate/memory",
    "tests/benchmarks",
)
"""The longest of what is left, so that the last ones are short: what ends later than the others ends alone."""

ORDER = (*WITHOUT_KERNELS, SLURM, *WITH_KERNELS, *THEN)
"""What comes one after the other: beginnings of test names, and the marker's group."""

LONGEST_S = 1800.0
"""When one of those counts as hung: a sweep may take 1500 s (conftest.py), and more where it compiles first."""

ONE_AFTER_ANOTHER = ("tests/launch/run/test_attempt.py", "tests/launch/run/test_logs.py")
"""Never beside each other: the one has the kernel kill for want of memory, by whose counter the other's dead rank would
be taken for killed."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m alone` or `-m fast` only files with such tests are read, since reading all takes as long as these."""
    if config.option.markexpr not in {"alone", MARKER} or collection_path.suffix != ".py":
        return None
    if any(Path(argument.partition("::")[0]).resolve() == collection_path for argument in config.args):
        return None  # asked for by name: read, and its other tests deselected
    if config.option.markexpr == MARKER:
        return None if holds_fast_tests(collection_path, config) else True
    name = collection_path.relative_to(config.rootpath).as_posix()
    return None if any(begin.startswith(name) for begin in ALONE) else True


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --shuffle, which finds tests that pass only after others."""
    parser.addoption("--shuffle", metavar="SEED", help="run in an order drawn by a number, or by `random`")


def pytest_configure(config: pytest.Config) -> None:
    """Draw the seed once, before processes of pytest-xdist are started: they must agree on the order."""
    if config.option.shuffle == "random":
        config.option.shuffle = str(random.SystemRandom().randrange(10**6))


def pytest_report_header(config: pytest.Config) -> str | None:
    """Name the order, so that it can be repeated."""
    return f"order: make test ORDER={config.option.shuffle}" if config.option.shuffle else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Mark what runs alone and what stays together, and sort; the order within a file stays unless it is drawn."""
    if config.option.shuffle:
        _shuffle(items, int(config.option.shuffle))
    for item in items:
        if item.nodeid.startswith(tuple(ALONE)):
            item.add_marker("alone")
        elif is_fast(item.nodeid):
            item.add_marker(MARKER)
        if item.nodeid.startswith(WITH_KERNELS):
            item.add_marker(pytest.mark.timeout(LONGEST_S))
        if item.get_closest_marker(SLURM):
            item.add_marker(pytest.mark.xdist_group(SLURM))
        if item.nodeid.startswith(ONE_AFTER_ANOTHER):
            item.add_marker(pytest.mark.xdist_group("oom"))
    items.sort(key=_begins)


def _shuffle(items: list[pytest.Item], seed: int) -> None:
    """Draw an order of the files, and of the tests of each: a file's fixtures are made once all the same."""
    drawn = random.Random(seed)  # noqa: S311 -- no secret
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    groups = list(files.values())
    drawn.shuffle(groups)
    for group in groups:
        drawn.shuffle(group)
    items[:] = [item for group in groups for item in group]


def _begins(item: pytest.Item) -> int:
    return ORDER.index(SLURM) if item.get_closest_marker(SLURM) else place_of(item.nodeid)


def place_of(nodeid: str) -> int:
    """Where a test's group stands in the order: before the kernels are compiled, of a cluster, after, then the rest."""
    for names in (WITH_KERNELS, WITHOUT_KERNELS, THEN):
        for name in names:
            if nodeid.startswith(name):
                return ORDER.index(name)
    return len(ORDER)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files, and marked groups of tests, go to a process whole; whichever process is free takes the next."""
    from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]

    class ByFileOrGroup(LoadGroupScheduling):  # type: ignore[misc] # xdist publishes no types
        def _split_scope(self, nodeid: str) -> str:
            group = super()._split_scope(nodeid)
            return nodeid.partition("::")[0] if group == nodeid else group

    return ByFileOrGroup(config, log)
