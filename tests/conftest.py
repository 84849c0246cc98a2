"""Expensive runs, made once for the whole session and shared by the tests that read them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

from tests.fast_tier import pytest_make_collect_report, pytest_runtest_protocol  # noqa: F401
from tests.garbage import pytest_collection  # noqa: F401
from tests.kernels import kernels, pytest_collection_finish, pytest_unconfigure  # noqa: F401 -- pytest finds them here
from tests.schedule import (  # noqa: F401
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_ignore_collect,
    pytest_report_header,
    pytest_xdist_make_scheduler,
)
from tests.tools import forked_launcher
from tests.tools.emulated import emulated, emulator, of_all  # noqa: F401
from tests.tools.kept_simulator import kept_simulator, simulate  # noqa: F401
from tests.tools.rank_forker import rank_forker
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.hardware.hardware import known_gpu
from zerobench.config.trial.trial import Evidence
from zerobench.emulator.emulator import Emulator
from zerobench.emulator.gpu import EmulatedGpu
from zerobench.launch.run.launcher import PINNED_MALLOC
from zerobench.records.records import MemoryRow, RankRecord
from zerobench.records.store import Run, Trial, load_run

os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
# As in an environment that was activated. Else some processes would compile DeepSpeed's kernels with its ninja and some
# with the system's, of which each takes what the other has made for stale: a kernel was compiled seven times.

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Else each of a thousand processes compiles what it imports of the package: a third of what the command takes to begin.

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Threads of OpenMP spin while they wait for each other: where others want the cores, a product of matrices took ten
# times as long, and a trial of one process with two threads ran into its time limit.

settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")
# The same examples each time, so that a change is judged by itself; CONTRIBUTING.md says how to search with others.


@dataclass(frozen=True)
class Swept:
    """A finished run of `zerobench run`, and what it printed."""

    run: Run
    output: str
    exit_code: int

    def trials(self, **wanted: object) -> list[Trial]:
        """The trials whose specification has these values."""
        return [t for t in self.run.trials() if all(getattr(t.spec, key) == value for key, value in wanted.items())]

    def trial(self, **wanted: object) -> Trial:
        """The one trial whose specification has these values."""
        (found,) = self.trials(**wanted)
        return found


Sweeper = Callable[..., Swept]


@pytest.fixture(scope="session")
def sweep_once(tmp_path_factory: pytest.TempPathFactory) -> Sweeper:
    """Run a sweep from the command line as a user does; the same arguments run only once a session."""
    return _sweeper(tmp_path_factory, "zerobench", {})


@pytest.fixture(scope="session")
def forked_ranks(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Mapping[str, str]]:
    """Variables with which `python -m tests.tools.forked_zerobench` starts ranks as forks of one process
    (tools/rank_forker.py), in a third of the time: for what ranks compute, not for how they are started.
    """
    added = {**PINNED_MALLOC, "DS_ACCELERATOR": "cpu"}
    with rank_forker(of_all(tmp_path_factory, worker_id), Evidence.MEASURED, added) as socket:
        yield {forked_launcher.SOCKET: str(socket)}


@pytest.fixture(scope="session")
def forked_scripts(
    tmp_path_factory: pytest.TempPathFactory,
    worker_id: str,
    emulator: Emulator,  # noqa: F811 -- pytest's fixture, imported above
) -> Iterator[Mapping[str, str]]:
    """The same for the ranks of `zerobench emulate`: for what their scripts do once torch is there."""
    added = emulator.variables(EmulatedGpu.build(known_gpu("H200")))  # a rank has its own variables, and its own GPU
    added["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no processes that compile beside a script: each would import torch
    folder = of_all(tmp_path_factory, worker_id)
    with rank_forker(folder, Evidence.EMULATED, added, emulator.python) as socket:
        yield {forked_launcher.SOCKET_OF_SCRIPTS: str(socket)}


@pytest.fixture(scope="session")
def forked_sweep_once(tmp_path_factory: pytest.TempPathFactory, forked_ranks: Mapping[str, str]) -> Sweeper:
    """`sweep_once` with forked ranks."""
    return _sweeper(tmp_path_factory, "tests.tools.forked_zerobench", forked_ranks)


def _sweeper(tmp_path_factory: pytest.TempPathFactory, module: str, added: Mapping[str, str]) -> Sweeper:
    done: dict[tuple[str, ...], Swept] = {}

    def run(*arguments: str) -> Swept:
        if arguments not in done:
            reports = tmp_path_factory.mktemp("reports")
            command = [sys.executable, "-m", module, "run", *arguments, "--reports", str(reports)]
            output, exit_code = _run_to_its_end(command, {**os.environ, **added})
            (folder,) = [path for path in reports.iterdir() if path.is_dir()]
            done[arguments] = Swept(load_run(folder), output, exit_code)
        return done[arguments]

    return run


def _run_to_its_end(command: list[str], environment: Mapping[str, str]) -> tuple[str, int]:
    """What a command printed, and its exit status. Where the test's time runs out it is asked to end: killed, it could
    not end its ranks, which would go on beside the other tests.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            out, err = process.communicate(timeout=1500)
        except BaseException:
            process.terminate()
            raise
    return out + err, process.returncode


@pytest.fixture(scope="session")
def quickstart(kernels: None, forked_sweep_once: Sweeper) -> Swept:  # noqa: F811 -- pytest's fixture, imported above
    """The sweep that `make sweep` runs, of fewer steps and a quarter of their tokens; not beside a compilation, which
    would take it the cores. Ranks that DeepSpeed's launcher starts, as it does there: tests/trials/test_live_view.py.
    """
    fewer = ("steps.warmup=0", "steps.timed=2", "sequence_length=64")
    return forked_sweep_once("quickstart", *(word for pair in fewer for word in ("--set", pair)))


@pytest.fixture(scope="session")
def own_sweep(tmp_path_factory: pytest.TempPathFactory, sweep_once: Sweeper) -> Callable[..., Swept]:
    """Run a sweep written as YAML text, once a session."""
    return _of_text(tmp_path_factory, sweep_once)


@pytest.fixture(scope="session")
def forked_sweep(tmp_path_factory: pytest.TempPathFactory, forked_sweep_once: Sweeper) -> Callable[..., Swept]:
    """The same with forked ranks."""
    return _of_text(tmp_path_factory, forked_sweep_once)


def _of_text(tmp_path_factory: pytest.TempPathFactory, sweep_once: Sweeper) -> Callable[..., Swept]:
    files: dict[str, Path] = {}

    def run(text: str, *arguments: str) -> Swept:
        if text not in files:
            files[text] = tmp_path_factory.mktemp("sweeps") / "sweep.yaml"
            files[text].write_text(text, encoding="utf-8")
        return sweep_once(str(files[text]), *arguments)

    return run


def memory_row(
    rank: RankRecord, phase: Phase, category: Category, *, step: StepKind = StepKind.STEADY, place: Place = Place.DEVICE
) -> MemoryRow:
    """One row of a rank's ledger."""
    (row,) = [r for r in rank.memory if (r.step, r.phase, r.place, r.category) == (step, phase, place, category)]
    return row
