"""Where trials run, and by what their ranks are started: this machine and its hostfile, or the nodes of a Slurm job.

A runner knows its executor by this protocol alone, so that a trial is watched, ended and judged in one way wherever it
runs. `LocalExecutor` is the deepspeed launcher on this machine, or over ssh on the nodes of a hostfile; the nodes of a
Slurm job are zerobench.launch.slurm.job.executor.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Status
from zerobench.config.derived.strategy import strategy_info
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.launch.run import remote
from zerobench.launch.run.environment_launch import environment_argv, environment_variables, made_environment
from zerobench.launch.run.launcher import (
    WORKER_MODULE,
    deepspeed_argv,
    free_port,
    launch_environment,
    launched_processes,
    read_hosts,
    visible_devices,
)
from zerobench.records.folder import TrialFolder
from zerobench.records.records import Start

Elsewhere = Callable[[str, str], list[str]]
"""Does a verb of zerobench.launch.run.remote for the trial with a mark, on all of its nodes; a line for each fault."""


@dataclass(frozen=True)
class Launch:
    """How the ranks of one trial are started."""

    argv: Sequence[str]
    added: Mapping[str, str]
    """What its environment has more than ours."""
    elsewhere: Elsewhere | None = None
    """Reaches its processes on other nodes; None where there are none."""
    needs_env_file: bool = False
    """Whether ranks on other nodes get `added` through the file that DS_ENV_FILE names."""


@dataclass(frozen=True)
class Interruption:
    """What took the machine from a trial, which is not of the trial's making."""

    status: Status
    message: str
    """One line for a person."""
    evidence: str | None = None


def without_a_word(start: Start | None) -> Interruption:
    """What is said of a trial of whose runner nothing is known but that it is gone."""
    runner = "its runner" if start is None else f"its runner ({start.runner})"
    return Interruption(Status.INTERRUPTED, f"{runner} ended first, without a message")


class Executor(Protocol):
    """Where trials run."""

    @property
    def num_cpus(self) -> int:
        """Cores of one node."""

    @property
    def num_gpus(self) -> int:
        """GPUs of one node."""

    @property
    def settle_s(self) -> float:
        """How long the launcher may take to end once a rank failed or all are done."""

    @property
    def job(self) -> str | None:
        """The job of a cluster in which trials run; None outside of any."""

    @property
    def job_ends_at_s(self) -> float | None:
        """When the job's time limit comes, Unix time."""

    def check(self, trial: TrialSpec) -> None:
        """Refuse what the executor cannot give to `trial`. Raises UserError."""

    def nodes(self, trial: TrialSpec) -> list[str]:
        """The names of the nodes that `trial` takes, by the index of the node; empty where it is this machine."""

    def compiles_for(self, trial: TrialSpec) -> bool:
        """Whether kernels that are compiled here are those that `trial` loads: its ranks are here, as our Python."""

    def launch(self, trial: TrialSpec, folder: TrialFolder) -> Launch:
        """How `trial`, whose files lie in `folder`, is started. Raises UserError."""

    def first_rank_exit(self, code: int | None) -> int | None:
        """What the launcher's exit status `code` says of the first rank that it found dead, as in subprocess."""

    def interruption(self) -> Interruption | None:
        """Whether the machine is being taken from us, and by what; asked after a trial that did not complete."""

    def lost(self, start: Start | None) -> Interruption:
        """What ended a trial that was begun here earlier, whose runner left no word of it."""


@dataclass(frozen=True)
class LocalExecutor:
    """The machine we are on, or the nodes of a hostfile: ranks are started by the deepspeed launcher."""

    num_cpus: int
    """Cores of one node."""
    num_gpus: int
    """GPUs of one node."""
    hostfile: Path | None = None
    """The nodes, for trials on several."""
    worker_module: str = WORKER_MODULE
    settle_s: float = 60.0
    """How long the launcher may take to end once a rank failed or all are done: it ends a node's other ranks itself,
    within some 30 s, but knows nothing of other nodes."""
    job: str | None = field(default=None, init=False)
    job_ends_at_s: float | None = field(default=None, init=False)

    def check(self, trial: TrialSpec) -> None:
        """Refuse a hostfile, or CUDA_VISIBLE_DEVICES, that will not do for `trial`. Raises UserError."""
        self.nodes(trial)
        self._devices(trial)

    def nodes(self, trial: TrialSpec) -> list[str]:
        """The first hosts of the hostfile, for a trial on several; none where this machine does. Raises UserError."""
        if trial.num_nodes == 1 or launched_processes(trial) == 1:
            return []
        if self.hostfile is None:
            raise UserError(f"num_nodes: {trial.num_nodes}: needs --hostfile FILE")
        hosts = read_hosts(self.hostfile)
        if len(hosts) < trial.num_nodes:
            raise UserError(f"--hostfile: {self.hostfile} names {len(hosts)} hosts; the trial needs {trial.num_nodes}")
        return hosts[: trial.num_nodes]

    def compiles_for(self, trial: TrialSpec) -> bool:
        """Not on the nodes of a hostfile: each compiles its own at first use."""
        return self.worker_module == WORKER_MODULE and not self.nodes(trial)

    def launch(self, trial: TrialSpec, folder: TrialFolder) -> Launch:
        """The deepspeed launcher's command, or that of the strategy's own environment. Raises UserError."""
        environment_name = strategy_info(trial.strategy).environment
        if environment_name is not None:
            return self._launch_in(environment_name, trial, folder)
        hosts = self.nodes(trial)
        argv = deepspeed_argv(
            trial, folder, free_port(), self.hostfile, devices=self._devices(trial), worker_module=self.worker_module
        )
        added = launch_environment(trial, folder, num_cpus=self.num_cpus, num_gpus=self.num_gpus)
        if not hosts:
            return Launch(argv, added)
        return Launch(argv, added, lambda verb, mark: remote.on_all(hosts, verb, mark), needs_env_file=True)

    def _launch_in(self, name: str, trial: TrialSpec, folder: TrialFolder) -> Launch:
        """The command of the environment `name`; ranks are on this machine, and on its CPU."""
        environment, code = made_environment(name)
        added = launch_environment(trial, folder, num_cpus=self.num_cpus, num_gpus=0)
        return Launch(
            environment_argv(environment.python, name, folder), added | environment_variables(code, free_port())
        )

    def first_rank_exit(self, code: int | None) -> int | None:
        """launch.py exits with a rank's negative status, of which eight bits arrive."""
        return code - 256 if code is not None and code > 128 else code

    def interruption(self) -> Interruption | None:
        """Nobody takes a machine from a runner that is its user's own."""
        return None

    def lost(self, start: Start | None) -> Interruption:
        """Its runner was killed, or the machine went down: from here it looks the same."""
        return without_a_word(start)

    def _devices(self, trial: TrialSpec) -> list[int] | None:
        return visible_devices(trial, os.environ) if self.num_gpus else None


def check_trials(trials: Iterable[TrialSpec], executor: Executor) -> None:
    """Refuse, before anything is started, what `executor` cannot give to one of `trials`. Raises UserError."""
    for trial in trials:
        if trial.evidence in {Evidence.MEASURED, Evidence.SOLO}:
            executor.check(trial)
