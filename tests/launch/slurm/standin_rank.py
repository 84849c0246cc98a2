"""A rank that measures nothing and speaks the worker's file contract, in the standard library alone: it starts in
some 30 ms, so that tests on a cluster spend their time on the cluster.

It stands where the ranks' interpreter is asked for (`zerobench submit --python`): asked for the worker, it does what
the trial's model config says under `acts` for its rank; for anything else it is Python itself.
"""

import faulthandler
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path


def main(arguments: list[str]) -> None:
    if arguments[:2] != ["-m", "zerobench.rank.loop"]:
        os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 -- it becomes what was asked for
    folder = Path(arguments[arguments.index("--trial-folder") + 1])
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    stacks = (folder / f"stacks_{rank}.txt").open("w")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    trial = json.loads((folder / "trial.json").read_text())
    say(folder, rank, "timed", 3)
    act = trial["model"]["hf_config"]["acts"].get(str(rank), "complete")
    meet(folder, world_size)
    ACTS[act](folder, rank)
    say(folder, rank, "done", 8)


def say(folder: Path, rank: int, phase: str, step: int) -> None:
    progress = {
        "rank": rank,
        "pid": os.getpid(),
        "hostname": socket.gethostname(),
        "phase": phase,
        "step_index": step,
        "num_steps": 8,
        "memory_bytes": 10_000_000 * (rank + 1),
        "updated_at_s": time.time(),
    }
    write_whole(folder / f"progress_{rank}.json", progress)


def meet(folder: Path, world_size: int) -> None:
    """Wait for the other ranks, as a process group does."""
    while not all((folder / f"progress_{rank}.json").exists() for rank in range(world_size)):
        time.sleep(0.02)


def complete(folder: Path, rank: int) -> None:
    record = {
        "schema_version": 1,
        "trial_id": folder.name,
        "rank": rank,
        "local_rank": int(os.environ["LOCAL_RANK"]),
        "world_size": int(os.environ["WORLD_SIZE"]),
        "hostname": socket.gethostname(),
        "node": int(os.environ["SLURM_NODEID"]),
        "pid": os.getpid(),
        "status": "completed",
        "device_type": "cpu",
        "device_name": os.environ["SLURMD_NODENAME"],
        "micro_batch_size": 1,
    }
    write_whole(folder / f"rank_{rank}.json", record)


def write_whole(path: Path, document: dict[str, object]) -> None:
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    hidden.write_text(json.dumps(document))
    hidden.replace(path)


def hang(_folder: Path, _rank: int) -> None:
    while True:
        time.sleep(60)


def hang_the_first_time(folder: Path, rank: int) -> None:
    """Until it is stopped; run again, it completes."""
    trace = folder.parents[1] / f"been_here_{folder.name}_{rank}"
    if not trace.exists():
        trace.touch()
        hang(folder, rank)
    complete(folder, rank)


def ignore_sigterm(folder: Path, rank: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hang_the_first_time(folder, rank)


def wait_to_be_told(folder: Path, rank: int) -> None:
    """Until there is a file `go` in the run's folder."""
    while not (folder.parents[1] / "go").exists():
        time.sleep(0.05)
    complete(folder, rank)


def exit_silently(_folder: Path, _rank: int) -> None:
    os._exit(3)


ACTS = {
    act.__name__: act for act in (complete, hang, hang_the_first_time, ignore_sigterm, wait_to_be_told, exit_silently)
}

if __name__ == "__main__":
    main(sys.argv[1:])
