"""The `srun` commands that start a trial's ranks in a job: pure functions of the trial.

There are two ways. By default srun starts the worker on each task, and `slurm/rank.sh` makes a rank of the task. Or
srun starts one deepspeed launcher on each node, over a hostfile of the job's nodes, without ssh: its own `--launcher
slurm` gives ranks no MASTER_ADDR (deepspeed/launcher/multinode_runner.py, SlurmRunner).

Options that srun needs, all set here:

- `--kill-on-bad-exit`: without it the other ranks wait for the failed one until the job's time is up;
- `--cpus-per-task`: srun does not inherit it from sbatch (since Slurm 22.05);
- `--mem=0`: all of the job's memory, else a step takes the memory of its cores only, and none is left for the
  overlapping steps that dump stacks and end ranks;
- `--input=none`: srun would read the runner's standard input.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zerobench.common.resources import shipped
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.launcher import WORKER_MODULE, launched_processes
from zerobench.launch.slurm.options import ContainerRuntime
from zerobench.records.folder import RunFolder, TrialFolder

RANK_SCRIPT = "rank.sh"


@dataclass(frozen=True)
class Interpreter:
    """The ranks' Python, inside a container if one is named."""

    python: str
    container: str | None = None
    runtime: ContainerRuntime = ContainerRuntime.PYXIS

    def srun_options(self, folder: Path) -> list[str]:
        """Return srun's options for the container, which sees `folder` at its own path."""
        if self.container is None or self.runtime is not ContainerRuntime.PYXIS:
            return []
        return [f"--container-image={self.container}", f"--container-mounts={folder}:{folder}"]

    def command(self, arguments: Sequence[str], folder: Path) -> list[str]:
        """Return the command of Python with `arguments`; a container sees `folder` at its own path."""
        within = self.container is not None and self.runtime is ContainerRuntime.APPTAINER
        before = ["apptainer", "exec", "--nv", "--bind", str(folder), str(self.container)] if within else []
        return [*before, self.python, *arguments]


def srun_argv(
    trial: TrialSpec, folder: TrialFolder, interpreter: Interpreter, nodes: Sequence[str], cpus_per_node: int
) -> list[str]:
    """Return an srun command with a task on `nodes` for each rank of `trial`, whose files are in `folder`."""
    tasks_per_node = launched_processes(trial) // len(nodes)
    run_folder = _run_folder(folder).path
    worker = ["-m", WORKER_MODULE, "--trial-folder", str(folder.path)]
    return [
        *step_options(nodes, tasks_per_node, max(1, cpus_per_node // tasks_per_node)),
        "--kill-on-bad-exit=1",
        f"--job-name={folder.path.name}",
        # A log for each task; a percent sign in a path would be read as a pattern of srun's.
        f"--output={str(folder.path / 'logs').replace('%', '%%')}/rank_%t.log",
        *interpreter.srun_options(run_folder),
        *("bash", str(rank_script(folder)), str(folder.path)),
        *interpreter.command(worker, run_folder),
    ]


def deepspeed_argv(
    trial: TrialSpec,
    folder: TrialFolder,
    interpreter: Interpreter,
    nodes: Sequence[str],
    cpus_per_node: int,
    master: tuple[str, int],
    hostfile: Path,
) -> list[str]:
    """Return an srun command with one deepspeed launcher on each of `nodes`, listed in `hostfile`; rank 0 is at
    `master`.
    """
    run_folder = _run_folder(folder).path
    address, port = master
    launcher = [
        *("--hostfile", str(hostfile)),
        *("--num_nodes", str(len(nodes)), "--num_gpus", str(launched_processes(trial) // len(nodes))),
        *("--master_addr", address, "--master_port", str(port)),
        "--no_local_rank",
        *("--enable_each_rank_log", str(folder.path / "logs")),
        *("--module", WORKER_MODULE),
        *("--trial-folder", str(folder.path)),
    ]
    start = interpreter.command(["-m", "deepspeed.launcher.runner", "--no_ssh", "--node_rank"], run_folder)
    return [
        *step_options(nodes, 1, cpus_per_node),
        "--kill-on-bad-exit=1",
        f"--job-name={folder.path.name}",
        *interpreter.srun_options(run_folder),
        *("bash", "-c", _WITH_NODE_RANK, "node", str(len(start)), *start, *launcher),
    ]


_WITH_NODE_RANK = 'n=$1; shift; exec "${@:1:n}" "$SLURM_NODEID" "${@:n+1}"'
"""The launcher takes the node's number among its own options, and only the task knows it."""


def step_options(nodes: Sequence[str], tasks_per_node: int, cpus_per_task: int) -> list[str]:
    """Return srun with the nodes and tasks of a step."""
    return [
        "srun",
        f"--nodes={len(nodes)}",
        f"--nodelist={','.join(nodes)}",
        f"--ntasks={len(nodes) * tasks_per_node}",
        f"--ntasks-per-node={tasks_per_node}",
        f"--cpus-per-task={cpus_per_task}",
        "--distribution=block",
        "--mem=0",
        "--input=none",
    ]


def overlapping_step(nodes: Sequence[str], command: Sequence[str]) -> list[str]:
    """Return an srun command that runs `command` once on each of `nodes`, next to the step that runs there."""
    return [*step_options(nodes, 1, 1), "--overlap", *command]


def hostfile_text(nodes: Sequence[str], slots: int) -> str:
    """Return a hostfile as the deepspeed launcher reads it."""
    return "".join(f"{node} slots={slots}\n" for node in nodes)


def rank_script(folder: TrialFolder) -> Path:
    """Path of the script, in the trial's run, that turns a task into a rank: nodes and containers see it there, unlike
    our package.
    """
    return _run_folder(folder).slurm / RANK_SCRIPT


def rank_script_text() -> str:
    """Text of the shipped script."""
    return (shipped("slurm") / RANK_SCRIPT).read_text(encoding="utf-8")


def _run_folder(folder: TrialFolder) -> RunFolder:
    return RunFolder(folder.path.parents[1])
