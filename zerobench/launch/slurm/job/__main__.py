"""Run the trials of one job, inside the job; the batch scripts end with it.

    python -m zerobench.launch.slurm.job RUN TASKS        # line SLURM_ARRAY_TASK_ID of the tasks file, from 0
    python -m zerobench.launch.slurm.job RUN --trial ID   # one trial; may be repeated
    python -m zerobench.launch.slurm.job RUN --finish     # records started trials whose job is over

A light process on the job's first node, without torch: srun starts the ranks. It replaces the batch script (exec), so
that Slurm's signals arrive here. It records how each trial ended; if it is killed first, the requeued job, `--finish`
or the next submission does.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from zerobench.common.errors import UserError
from zerobench.common.training_python import VARIABLE, choose_python, training_python
from zerobench.common.units import counted, format_seconds
from zerobench.common.vocabulary import Status
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.machine.this_machine import detect_machine
from zerobench.launch.run.executor import Executor, LocalExecutor
from zerobench.launch.run.lock import trial_locked
from zerobench.launch.run.lost import close, is_begun, read_start
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.runner import RunResult, run_beside_others
from zerobench.launch.run.stop import Stop, stop_on_signals
from zerobench.launch.slurm.job import interruption
from zerobench.launch.slurm.job.allocation import read_allocation
from zerobench.launch.slurm.job.executor import SlurmExecutor, capture_nodes
from zerobench.launch.slurm.job.steps import Interpreter
from zerobench.launch.slurm.jobs import read_tasks
from zerobench.launch.slurm.options import ContainerRuntime, Launcher
from zerobench.records.folder import RunFolder
from zerobench.records.records import TrialRecord
from zerobench.records.store import load_run


class Log(Observer):
    """Prints lines to standard output, which Slurm stores."""

    def __init__(self, job: str | None) -> None:
        self._before = f"job {job}: " if job else ""
        self._compiling: set[str] = set()

    def say(self, text: str) -> None:
        """Print a line and flush."""
        sys.stdout.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {self._before}{text}\n")
        sys.stdout.flush()

    def run_started(self, run: RunFolder, to_do: int, kept: int, skipped: int) -> None:
        """Report the number of trials to run."""
        done = f", {kept + skipped} already done" if kept + skipped else ""
        self.say(f"{run.run_id}: {counted(to_do, 'trial')} to run{done}")

    def note(self, line: str) -> None:
        """Report compiled kernels, before the first trial."""
        self.say(line)

    def compiling(self, kernel: str, spent_s: float) -> None:  # noqa: ARG002 -- a log says it once
        """Report each kernel being compiled once."""
        if kernel not in self._compiling:
            self._compiling.add(kernel)
            self.say(f"compiling DeepSpeed's kernel {kernel}")

    def trial_started(self, trial: TrialSpec, number: int, to_do: int) -> None:
        self.say(f"trial {number} of {to_do}: {trial.trial_id}")

    def trial_ended(self, record: TrialRecord) -> None:
        """Report the trial's status and duration."""
        took = ""
        if record.started_at_s is not None and record.ended_at_s is not None:
            took = f" after {format_seconds(record.ended_at_s - record.started_at_s)}"
        why = f": {record.reason}" if record.reason else ""
        self.say(f"{record.trial_id}: {record.status.words}{took}{why}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: returns 0, 1 if a trial failed, 2 for a user error, 130 when stopped."""
    asked = _parser().parse_args(arguments)
    try:
        run = RunFolder(asked.run.resolve())
        if asked.finish:
            return _finish(run)
        with stop_on_signals(interruption.TIME_SIGNAL) as stop:
            result = _run(run, _trial_ids(asked, os.environ), asked, stop)
            in_grace = result.statuses[Status.PREEMPTED] > 0 and stop.signal is not signal.SIGTERM
    except UserError as error:
        print(f"zerobench: {' '.join(str(error).splitlines())}", file=sys.stderr)  # noqa: T201 -- the job's log
        return 2
    while in_grace:  # until Slurm ends us: a preempted job that leaves by itself has completed, and is not requeued
        time.sleep(60)
    return result.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m zerobench.launch.slurm.job", description="Run the trials of one job."
    )
    parser.add_argument("run", type=Path, help="the run folder")
    parser.add_argument("tasks", type=Path, nargs="?", help="one line per array task: its trial ids")
    parser.add_argument("--trial", action="append", default=[], help="trial id; may be repeated")
    parser.add_argument("--finish", action="store_true", help="classify trials whose job is over, without starting any")
    parser.add_argument("--launcher", type=Launcher, choices=list(Launcher), default=Launcher.SRUN)
    parser.add_argument("--worker-python", help="Python interpreter of the ranks (ZEROBENCH_PYTHON, or this one)")
    parser.add_argument("--container", help="container image of the ranks")
    parser.add_argument(
        "--container-runtime", type=ContainerRuntime, choices=list(ContainerRuntime), default=ContainerRuntime.PYXIS
    )
    parser.add_argument("--cpus-per-node", type=int, help="cores per node (all that Slurm gives)")
    parser.add_argument("--gpus-per-node", type=int, help="GPUs per node, 0 for CPU ranks (all that Slurm gives)")
    return parser


def _trial_ids(asked: argparse.Namespace, environ: Mapping[str, str]) -> list[str]:
    if asked.trial:
        return list(asked.trial)
    if asked.tasks is None:
        raise UserError("TASKS is missing: a file with one line of trial ids per array task, or --trial ID")
    tasks = read_tasks(asked.tasks)
    number = int(environ.get("SLURM_ARRAY_TASK_ID") or 0)
    if number >= len(tasks):
        raise UserError(f"SLURM_ARRAY_TASK_ID: {number}: {asked.tasks} has {len(tasks)} lines, counted from 0")
    return tasks[number]


def _run(run: RunFolder, trial_ids: Sequence[str], asked: argparse.Namespace, stop: Stop) -> RunResult:
    executor = _executor(asked, stop)
    log = Log(executor.job)
    if isinstance(executor, SlurmExecutor):
        run.nodes.mkdir(exist_ok=True)
        for fault in capture_nodes(executor, run.nodes):
            log.say(fault)
    return run_beside_others(run.path, trial_ids, executor=executor, observer=log, stop=stop)


def _executor(asked: argparse.Namespace, stop: Stop) -> Executor:
    python = _ranks_python(asked)
    if asked.launcher is Launcher.LOCAL:
        machine = detect_machine()
        return LocalExecutor(machine.cpu_cores, machine.num_gpus)
    allocation = read_allocation(os.environ)
    if asked.cpus_per_node:
        allocation = replace(allocation, cpus_per_node=asked.cpus_per_node)
    if asked.gpus_per_node is not None:
        allocation = replace(allocation, gpus_per_node=asked.gpus_per_node)
    interpreter = Interpreter(python, asked.container, asked.container_runtime)
    return SlurmExecutor(allocation, interpreter, stop, asked.launcher)


def _ranks_python(asked: argparse.Namespace) -> str:
    """Choose the interpreter of the ranks and of simulations; a container's is found by name, and within it alone.

    Raises UserError: it cannot be used on this node.
    """
    if asked.container:
        os.environ.pop(VARIABLE, None)
        return asked.worker_python or sys.executable
    if asked.worker_python:
        choose_python(asked.worker_python)
    return str(training_python().python)


def _finish(run: RunFolder) -> int:
    """Record the trials that were started and have no record, unless one of their jobs lives."""
    opened = load_run(run.path)
    log = Log(None)
    for trial_id in opened.pending():
        folder = run.trial(trial_id)
        if not is_begun(folder):
            continue
        start = read_start(folder)
        with trial_locked(folder) as is_mine:
            if is_mine and not folder.record.exists() and not interruption.is_alive(start):
                record = close(opened, opened.spec_to_run(trial_id), folder, interruption.lost)
                log.say(f"{trial_id}: {record.status.words}: {record.reason or 'all ranks had ended'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
