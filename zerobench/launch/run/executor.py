"""Executors start trials: on this machine and the hosts of a hostfile, or on the nodes of a Slurm job.

A runner uses this protocol alone, so trials are watched, ended and classified in one way everywhere. `LocalExecutor`
uses the deepspeed launcher on this machine, or over ssh on the hosts of a hostfile; the nodes of a Slurm job are
zerobench.launch.slurm.job.executor.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from zerobench.common.errors import UserError
from zerobench.common.training_variables import training_variables
from zerobench.common.vocabulary import Status
from zerobench.config.derived.strategy import strategy_info
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.launch.run import remote
from zerobench.launch.run.launcher import (
    WORKER_MODULE,
    deepspeed_argv,
    environment_argv,
    environment_variables,
    free_port,
    launch_environment,
    launched_processes,
    made_environment,
    read_hosts,
    visible_devices,
)
from zerobench.records.folder import TrialFolder
from zerobench.records.records import Start

Elsewhere = Callable[[str, str], list[str]]
"""Applies a verb of zerobench.launch.run.remote to the trial with a mark on all of its nodes; returns a line per
failure.
"""


@dataclass(frozen=True)
class Launch:
    """Command and environment that start the ranks of one trial."""

    argv: Sequence[str]
    added: Mapping[str, str]
    """Variables added to ours."""
    elsewhere: Elsewhere | None = None
    """Reaches its processes on other nodes; None without other nodes."""
    needs_env_file: bool = False
    """True if ranks on other nodes get `added` through the file that DS_ENV_FILE names."""


@dataclass(frozen=True)
class Interruption:
    """An event outside the trial that took the machine from it."""

    status: Status
    message: str
    """One line for people."""
    evidence: str | None = None


def silent_end(start: Start | None) -> Interruption:
    """Describe the end of a runner that left no trace but its start."""
    runner = "its runner" if start is None else f"its runner ({start.runner})"
    return Interruption(Status.INTERRUPTED, f"{runner} ended first, without a message")


class Executor(Protocol):
    """Starts trials on some machine."""

    @property
    def num_cpus(self) -> int:
        pass

    @property
    def num_gpus(self) -> int:
        pass

    @property
    def settle_s(self) -> float:
        """Seconds the launcher may take to end once a rank failed or all are done."""

    @property
    def job(self) -> str | None:
        """Cluster job in which trials run; None outside any."""

    @property
    def job_ends_at_s(self) -> float | None:
        """Unix time of the job's time limit."""

    def check(self, trial: TrialSpec) -> None:
        """Raise UserError if the executor cannot run `trial`."""

    def nodes(self, trial: TrialSpec) -> list[str]:
        """Return the names of the nodes that `trial` takes, by node index; empty for this machine."""

    def compiles_for(self, trial: TrialSpec) -> bool:
        """Return True if kernels compiled here are those `trial` loads: its ranks run here, under our Python."""

    def launch(self, trial: TrialSpec, folder: TrialFolder) -> Launch:
        """Return the launch of `trial`, whose files are in `folder`. Raises UserError."""

    def first_rank_exit(self, code: int | None) -> int | None:
        """Convert the launcher's exit status `code` to that of the first dead rank, as in subprocess."""

    def interruption(self) -> Interruption | None:
        """Return what is taking the machine from us, if anything; called after a trial that did not complete."""

    def lost(self, start: Start | None) -> Interruption:
        """Return what ended an earlier trial whose runner left no record of it."""


@dataclass(frozen=True)
class LocalExecutor:
    """Starts ranks by the deepspeed launcher, on this machine or the hosts of a hostfile."""

    num_cpus: int
    """Cores of one node."""
    num_gpus: int
    """GPUs of one node."""
    hostfile: Path | None = None
    """Hosts for trials on several nodes."""
    worker_module: str = WORKER_MODULE
    settle_s: float = 60.0
    """Seconds the launcher may take to end once a rank failed or all are done: it ends a node's other ranks itself,
    within some 30 s, but does not know of other nodes.
    """
    job: str | None = field(default=None, init=False)
    job_ends_at_s: float | None = field(default=None, init=False)

    def check(self, trial: TrialSpec) -> None:
        """Raise UserError if the hostfile or CUDA_VISIBLE_DEVICES is not enough for `trial`."""
        self.nodes(trial)
        self._devices(trial)

    def nodes(self, trial: TrialSpec) -> list[str]:
        """Return the first hosts of the hostfile for a multi-node trial, else none. Raises UserError."""
        if trial.num_nodes == 1 or launched_processes(trial) == 1:
            return []
        if self.hostfile is None:
            raise UserError(f"num_nodes: {trial.num_nodes}: needs --hostfile FILE")
        hosts = read_hosts(self.hostfile)
        if len(hosts) < trial.num_nodes:
            raise UserError(f"--hostfile: {self.hostfile} names {len(hosts)} hosts; the trial needs {trial.num_nodes}")
        return hosts[: trial.num_nodes]

    def compiles_for(self, trial: TrialSpec) -> bool:
        """False on the hosts of a hostfile: each compiles its own kernels at first use."""
        return self.worker_module == WORKER_MODULE and not self.nodes(trial)

    def launch(self, trial: TrialSpec, folder: TrialFolder) -> Launch:
        """Use the deepspeed launcher, or the launcher of the strategy's own environment. Raises UserError."""
        environment_name = strategy_info(trial.strategy).environment
        if environment_name is not None:
            environment, code = made_environment(environment_name)
            # These ranks run on this machine, and on its CPU whatever GPUs it has.
            variables = launch_environment(trial, folder, num_cpus=self.num_cpus, num_gpus=0)
            command = environment_argv(environment.python, environment_name, folder)
            return Launch(command, variables | environment_variables(code, free_port()))
        hosts = self.nodes(trial)
        argv = deepspeed_argv(
            trial, folder, free_port(), self.hostfile, devices=self._devices(trial), worker_module=self.worker_module
        )
        added = training_variables() | launch_environment(trial, folder, num_cpus=self.num_cpus, num_gpus=self.num_gpus)
        if not hosts:
            return Launch(argv, added)
        return Launch(argv, added, lambda verb, mark: remote.apply_verb(hosts, verb, mark), needs_env_file=True)

    def first_rank_exit(self, code: int | None) -> int | None:
        """launch.py exits with a rank's negative status, truncated to eight bits."""
        return code - 256 if code is not None and code > 128 else code

    def interruption(self) -> Interruption | None:
        """None: nobody takes a machine from its own user's runner."""
        return None

    def lost(self, start: Start | None) -> Interruption:
        """Its runner was killed, or the machine went down; the two cannot be told apart here."""
        return silent_end(start)

    def _devices(self, trial: TrialSpec) -> list[int] | None:
        return visible_devices(trial, os.environ) if self.num_gpus else None


def check_trials(trials: Iterable[TrialSpec], executor: Executor) -> None:
    """Raise UserError, before anything is started, if `executor` cannot run one of `trials`."""
    for trial in trials:
        if trial.evidence in {Evidence.MEASURED, Evidence.SOLO}:
            executor.check(trial)
