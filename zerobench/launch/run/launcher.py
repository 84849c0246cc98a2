"""The command line and environment that start a trial under the `deepspeed` launcher: pure functions of the trial.

DeepSpeed's launcher (deepspeed/launcher/runner.py, launch.py) has surprising defaults, all overridden here:

- it reads /job/hostfile by default, and then goes multi-node: a single-node trial names /dev/null;
- `--num_gpus` takes devices 0 to N-1 despite CUDA_VISIBLE_DEVICES: the devices are named with `--include`;
- ranks share one stdout, and their lines mix: each gets its own log file;
- on several nodes only variables with known prefixes reach the ranks, the rest through the file that DS_ENV_FILE
  names: ours is written there after the user's own (~/.deepspeed_env), outside the run folder, since it may hold
  secrets.

A strategy with a separate environment has no DeepSpeed there and so no deepspeed launcher: that environment's Python
runs a small launcher, which sets the variables by which ranks find each other and starts them on this machine
(zerobench.common.rank_processes).
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from zerobench.common.environment_locks import keep_in_use
from zerobench.common.environments import Environment, environment
from zerobench.common.errors import UserError
from zerobench.common.rank_processes import free_ports
from zerobench.common.training_python import VARIABLE, training_python
from zerobench.config.derived.batch import processes_of
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.folder import NEEDS_GPU_VARIABLE, TRIAL_VARIABLE, TrialFolder, writing

LAUNCHERS: Mapping[str, str] = {
    "horovod": "zerobench.rank.loop.horovod_launcher",
    "tensorflow": "zerobench.rank.tensorflow.launcher",
}
"""Launcher module by environment."""


def environment_argv(python: Path, name: str, folder: TrialFolder) -> list[str]:
    """Return the command that runs the trial in `folder` with the interpreter of environment `name`.

    If that has no torch, our interpreter draws the weights.
    """
    start = ["--start-python", str(training_python().python)] if name == "tensorflow" else []
    return [str(python), "-u", "-m", LAUNCHERS[name], "--trial-folder", str(folder.path), *start]


def environment_variables(code: Path, port: int) -> dict[str, str]:
    """Variables added to launch_environment: zerobench's code, and the meeting point of torch's process group."""
    return {"PYTHONPATH": str(code), VARIABLE: "", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def made_environment(name: str) -> tuple[Environment, Path]:
    """Return the environment `name` and the folder from which its Python imports zerobench.

    Raises UserError if it is not set up or cannot be written.
    """
    wanted = environment(name)
    if wanted.is_made:
        keep_in_use(wanted.path)
    if not wanted.is_made:
        raise UserError(
            f"strategy: {name}: its environment is not set up in {wanted.path}; run: zerobench setup {name}"
        )
    with writing(f"strategy: {name}: {wanted.path}"):
        return wanted, wanted.code()


WORKER_MODULE = "zerobench.rank.loop"
MARK = TRIAL_VARIABLE

NO_HOSTFILE = "/dev/null"
"""DeepSpeed takes a hostfile that is not a regular file for "local resources only" (runner.py, fetch_hostfile)."""

PINNED_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "0"}
"""Without these glibc keeps freed memory and resident size does not reflect tensors (mallopt(3))."""

_HOST = re.compile(r"\w[\w.:%@-]*", re.ASCII)
"""A name or address as ssh takes it. A leading dash would make it one of ssh's options, which can run commands."""


def launched_processes(trial: TrialSpec) -> int:
    """Count the processes that leave a record: every rank, or the single one that plays a rank alone or holds all
    replicas.
    """
    return 1 if trial.evidence.plays_one_rank and not trial.prediction.all_ranks else processes_of(trial)


def deepspeed_argv(
    trial: TrialSpec,
    folder: TrialFolder,
    port: int,
    hostfile: Path | None = None,
    *,
    devices: Sequence[int] | None = None,
    worker_module: str = WORKER_MODULE,
    program: Sequence[str] | None = None,
) -> list[str]:
    """Return the command that runs `trial`, whose files are in `folder`, under the deepspeed launcher.

    `devices` are device indices of a single node, if not simply the first ones. `program` is the launcher, by default
    that of the ranks' environment.
    """
    return [
        *(program or deepspeed_program()),
        *_placement_options(trial, hostfile, devices),
        *("--master_port", str(port)),
        "--no_local_rank",
        *("--enable_each_rank_log", str(folder.path / "logs")),
        *("--module", worker_module),
        *("--trial-folder", str(folder.path)),
    ]


def _placement_options(trial: TrialSpec, hostfile: Path | None, devices: Sequence[int] | None) -> list[str]:
    """Return the options that choose nodes and devices; `--include` excludes the counts (runner.py, main)."""
    if trial.num_nodes > 1 and launched_processes(trial) > 1:
        counts = ["--num_nodes", str(trial.num_nodes), "--num_gpus", str(trial.gpus_per_node)]
        return ["--hostfile", str(hostfile), *counts]
    if devices is not None:
        return ["--hostfile", NO_HOSTFILE, "--include", "localhost:" + ",".join(str(d) for d in devices)]
    return ["--hostfile", NO_HOSTFILE, "--num_nodes", "1", "--num_gpus", str(launched_processes(trial))]


def deepspeed_program() -> list[str]:
    """Return the `deepspeed` program next to the ranks' interpreter, or its module if there is none."""
    python = training_python()
    beside = python.bin / "deepspeed"
    if beside.is_file() and os.access(beside, os.X_OK):
        return [str(beside)]
    return [str(python.python), "-m", "deepspeed.launcher.runner"]


def launch_environment(trial: TrialSpec, folder: TrialFolder, *, num_cpus: int, num_gpus: int) -> dict[str, str]:
    """Return the variables added to the caller's for a trial's processes.

    `num_cpus` and `num_gpus` are per node.
    """
    added = {
        MARK: str(folder.path),
        **PINNED_MALLOC,
        # A rank that is alone (solo) gets what it would have beside the others, or its times would not compare.
        "OMP_NUM_THREADS": str(trial.threads_per_rank or max(1, num_cpus // trial.gpus_per_node)),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
    if num_gpus > 0:
        added[NEEDS_GPU_VARIABLE] = "1"
    else:
        added["DS_ACCELERATOR"] = "cpu"
        if trial.num_nodes == 1:
            added["GLOO_SOCKET_IFNAME"] = "lo"
    return added


def visible_devices(trial: TrialSpec, environ: Mapping[str, str]) -> list[int] | None:
    """Return the devices that CUDA_VISIBLE_DEVICES allows a single-node `trial`; None if it is not set.

    Raises UserError if the variable names devices by UUID, which DeepSpeed's launcher cannot, or too few.
    """
    value = environ.get("CUDA_VISIBLE_DEVICES")
    if not value or trial.num_nodes > 1:
        return None
    names = [name.strip() for name in value.split(",")]
    if not all(name.isdecimal() for name in names):
        raise UserError(
            f"CUDA_VISIBLE_DEVICES: {value!r} must list device indices for the deepspeed launcher, for example 0,1"
        )
    needed = launched_processes(trial)
    if len(names) < needed:
        raise UserError(f"CUDA_VISIBLE_DEVICES: {value!r} names {len(names)} devices; the trial needs {needed}")
    return [int(name) for name in names[:needed]]


def free_port() -> int:
    """Return a TCP port that nothing listens on now."""
    return free_ports(1)[0]


def command_text(argv: Sequence[str], added: Mapping[str, str]) -> str:
    r"""Return cmd.txt: the added variables, then the command, one argument per line.

    Run the trial again by hand with `xargs -d '\n' -a cmd.txt env`.
    """
    return "".join(f"{line}\n" for line in [*(f"{name}={value}" for name, value in added.items()), *argv])


def read_hosts(hostfile: Path) -> list[str]:
    """Read the hosts of an MPI-style hostfile (`name slots=N` per line), in order.

    Raises UserError if the file cannot be read, names no host or has a line of another form.
    """
    try:
        lines = hostfile.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"--hostfile: {hostfile} cannot be read: {why}") from None
    entries = [line.split() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    for words in entries:
        if len(words) < 2 or not words[1].removeprefix("slots=").isdecimal() or "slots=" not in words[1]:
            raise UserError(f"--hostfile: {hostfile}: {' '.join(words)!r} is not of the form 'name slots=N'")
        if _HOST.fullmatch(words[0]) is None:
            raise UserError(
                f"--hostfile: {hostfile}: {words[0]!r} is not a host name or address (letters or digits "
                "first, then also . - _ : % @)"
            )
    if not entries:
        raise UserError(f"--hostfile: {hostfile} has no hosts; one per line: 'name slots=N'")
    return [words[0] for words in entries]


def remote_environment_text(added: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """Return the text for the file at DS_ENV_FILE: the user's own variables for remote ranks, then `added`."""
    name = environ.get("DS_ENV_FILE", ".deepspeed_env")
    lines: list[str] = []
    for place in (Path.home(), Path()):
        file = place / name
        if file.is_file():
            lines += [line for line in file.read_text(encoding="utf-8").splitlines() if "=" in line]
    return "".join(f"{line}\n" for line in [*lines, *(f"{key}={value}" for key, value in added.items())])
