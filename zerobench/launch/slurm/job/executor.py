"""Executor on the nodes of a Slurm job, through srun (see zerobench.launch.run.executor)."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zerobench.common.errors import UserError
from zerobench.common.training_variables import training_variables
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.executor import Interruption, Launch
from zerobench.launch.run.launcher import free_port, launch_environment, launched_processes
from zerobench.launch.run.stop import Stop
from zerobench.launch.slurm.client import ask
from zerobench.launch.slurm.job import interruption
from zerobench.launch.slurm.job.allocation import Allocation
from zerobench.launch.slurm.job.steps import (
    Interpreter,
    deepspeed_argv,
    hostfile_text,
    overlapping_step,
    rank_script,
    rank_script_text,
    srun_argv,
)
from zerobench.launch.slurm.options import Launcher, refuse_own_environments
from zerobench.records.folder import TrialFolder, write_whole
from zerobench.records.records import Start

_STEP_PATIENCE_S = 30.0
"""Seconds a step that runs next to the ranks may take."""


@dataclass(frozen=True)
class SlurmExecutor:
    """The nodes of the current job."""

    allocation: Allocation
    interpreter: Interpreter
    stop: Stop
    """Set by Slurm's signals."""
    launcher: Launcher = Launcher.SRUN
    settle_s: float = 60.0

    @property
    def num_cpus(self) -> int:
        return self.allocation.cpus_per_node

    @property
    def num_gpus(self) -> int:
        return self.allocation.gpus_per_node

    @property
    def job(self) -> str:
        return self.allocation.job

    @property
    def job_ends_at_s(self) -> float | None:
        return self.allocation.ends_at_s

    def check(self, trial: TrialSpec) -> None:
        """Raise UserError for a trial that takes more nodes, or more GPUs per node, than the job has."""
        nodes, gpus = len(self.allocation.nodes), self.allocation.gpus_per_node
        refuse_own_environments([trial])
        if trial.num_nodes > nodes and launched_processes(trial) > 1:
            raise UserError(f"{trial.trial_id}: num_nodes: {trial.num_nodes} nodes, and job {self.job} has {nodes}")
        if 0 < gpus < trial.gpus_per_node and launched_processes(trial) > 1:
            raise UserError(f"{trial.trial_id}: gpus_per_node: {trial.gpus_per_node}, and Slurm gave {gpus} a node")

    def nodes(self, trial: TrialSpec) -> list[str]:
        """Return the first nodes of the job."""
        return list(self.allocation.nodes[: 1 if launched_processes(trial) == 1 else trial.num_nodes])

    def compiles_for(self, trial: TrialSpec) -> bool:  # noqa: ARG002 -- as every executor
        """False: ranks may run in a container, under another Python, on other nodes; they compile at first use."""
        return False

    def launch(self, trial: TrialSpec, folder: TrialFolder) -> Launch:
        """Return the srun command; rank 0 is on this node, which runs the batch script."""
        (folder.path / "logs").mkdir(exist_ok=True)
        cpus, gpus = self.allocation.cpus_per_node, self.allocation.gpus_per_node
        nodes = self.nodes(trial)
        # By what ranks reach rank 0; who knows better sets MASTER_ADDR in the batch script.
        usual = "127.0.0.1" if len(nodes) == 1 else self.allocation.hostname
        address, port = os.environ.get("MASTER_ADDR") or usual, free_port()
        added = {
            **training_variables(),
            **launch_environment(trial, folder, num_cpus=cpus, num_gpus=gpus),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
        }
        if self.launcher is Launcher.DEEPSPEED:
            hostfile = folder.path / "hostfile"
            write_whole(hostfile, hostfile_text(nodes, launched_processes(trial) // len(nodes)))
            master = (address, port)
            argv = deepspeed_argv(trial, folder, self.interpreter, nodes, cpus, master, hostfile)
        else:
            path = rank_script(folder)
            text = rank_script_text()
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                path.parent.mkdir(exist_ok=True)
                write_whole(path, text)
            argv = srun_argv(trial, folder, self.interpreter, nodes, cpus)
        return Launch(argv, added, lambda verb, mark: self._run_on_nodes(nodes, verb, mark))

    def _run_on_nodes(self, nodes: Sequence[str], verb: str, mark: str) -> list[str]:
        """Run a verb of zerobench.launch.run.remote on each of `nodes`, as a step next to the ranks."""
        # While Slurm ends the job it starts no further step, and ends the ranks itself.
        if self.stop.asked and self.stop.signal is not interruption.TIME_SIGNAL:
            return []
        answer = ask(
            overlapping_step(nodes, [sys.executable, "-m", "zerobench.launch.run.remote", verb, mark]), _STEP_PATIENCE_S
        )
        if answer is None:
            return [f"{verb}: srun did not answer in {_STEP_PATIENCE_S:g} s"]
        last = answer.stderr.strip().rpartition("\n")[2]
        return [f"{verb}: srun exited with {answer.exit_code}: {last}"] if answer.exit_code else []

    def first_rank_exit(self, code: int | None) -> int | None:
        """Srun exits with the highest status of its tasks: 128 plus the signal's number if one was killed."""
        if self.launcher is Launcher.DEEPSPEED and code is not None and code > 128:
            return code - 256  # launch.py exits with a rank's negative status, of which eight bits arrive
        return 128 - code if code is not None and code > 128 else code

    def interruption(self) -> Interruption | None:
        """Return what takes the nodes, if anything; then no further trial starts."""
        notice = interruption.taken(self.allocation, self.stop)
        if notice is not None and not self.stop.asked:
            self.stop.ask()
        return notice

    def lost(self, start: Start | None) -> Interruption:
        """Ask Slurm about the job in which a trial was started."""
        return interruption.lost(start)


def capture_nodes(executor: SlurmExecutor, folder: Path) -> list[str]:
    """Capture the environment of each node of the job in `folder`, once per run; returns a line on failure."""
    missing = [node for node in executor.allocation.nodes if not (folder / f"{node}.json").exists()]
    if not missing:
        return []
    module = ["-m", "zerobench.launch.run.node_environment", str(folder)]
    # This Python reads the packages of the ranks' (ZEROBENCH_PYTHON); a container has a file system of its own.
    within = executor.interpreter.container is not None
    command = executor.interpreter.command(module, folder.parent) if within else [sys.executable, *module]
    words = ["bash", "-c", 'exec "$@" "$SLURMD_NODENAME"', "node", *command]
    argv = overlapping_step(missing, [*executor.interpreter.srun_options(folder.parent), *words])
    answer = ask(argv, _STEP_PATIENCE_S * 2)
    if answer is not None and answer.exit_code == 0:
        return []
    why = answer.stderr.strip() if answer else "no answer"
    return [f"the environment of {', '.join(missing)} was not captured: {why}"]
