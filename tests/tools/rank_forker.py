"""Ranks as forks of a process that has imported torch, DeepSpeed and transformers, which takes each of them seconds.

    python -m tests.tools.rank_forker SOCKET

Tests that ask what ranks compute, and not how they are started, need no import of their own for each rank: a third of
the suite's time was that. One connection starts the ranks of one launcher (forked_launcher.py): a line of JSON with
their environments comes in, a line with the first exit status that is not 0 goes out when all have ended. Where a rank
fails, or the connection is closed, the others are ended, as DeepSpeed's launcher does.
"""

import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from zerobench.running.launcher import PINNED_MALLOC
from zerobench.worker import simulator

ROOT = Path(__file__).resolve().parents[2]
LOOK_S = 0.05
START_S = 300.0
OF_RANKS = (
    "deepspeed.runtime.zero.muon.muon_optimizer",  # DeepSpeed asks it of each optimizer; it imports torch's inductor
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.utils.cpp_extension",
    "transformers.models.auto.modeling_auto",
)
"""What measured ranks import besides what simulated ones do."""


@contextmanager
def rank_forker(path: Path) -> Iterator[None]:
    """The process that ranks are forked from, listening at `path`. It begins with what malloc and OpenMP read once."""
    environment = {**os.environ, **PINNED_MALLOC, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.tools.rank_forker", str(path)]
    process = subprocess.Popen(command, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        deadline = time.monotonic() + START_S
        while not path.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the process that ranks are forked from did not start")
            time.sleep(LOOK_S)
        yield
    finally:
        process.kill()
        process.wait()


def import_everything() -> None:
    """What ranks import, or nearly; nothing here starts a thread."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    for name in (*simulator._PRELOADED, *OF_RANKS):
        import_module(name)
    processor = import_module("cpuinfo")  # DeepSpeed asks twice for each kernel, a third of a second each time
    processor.get_cpu_info = cache(processor.get_cpu_info)  # type: ignore[attr-defined]
    processor.get_cpu_info()


def fork_rank(rank: Mapping[str, Any]) -> int:
    """Start one rank; its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        _become(rank)
    finally:
        os._exit(70)  # the worker ends its process itself
    return 0


def _become(rank: Mapping[str, Any]) -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(rank["environment"])
    os.chdir(rank["folder"])
    log = os.open(rank["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv = rank["arguments"]
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if rank["module"]:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


def serve_one(connection: socket.socket) -> None:
    """Run the ranks of one launcher and answer; in a fork of its own, whose children they are."""
    ranks: Sequence[Mapping[str, Any]] = json.loads(connection.makefile("r").readline())
    running = {fork_rank(rank) for rank in ranks}
    code = 0
    while running:
        gone = bool(select.select([connection], [], [], LOOK_S)[0])  # nothing more is sent: it was closed
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            running.discard(pid)
            code = code or os.waitstatus_to_exitcode(status)
        if gone or code:
            for one in running:
                os.kill(one, signal.SIGKILL if gone else signal.SIGTERM)
            for one in running:
                os.waitpid(one, 0)
            running = set()
    connection.sendall(f"{code}\n".encode())


def main() -> None:
    """Serve until ended."""
    import_everything()
    path = Path(sys.argv[1])
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path.with_suffix(".new")))
        listener.listen()
        path.with_suffix(".new").rename(path)  # whoever waits for it finds one that answers
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listener.close()
                serve_one(connection)
                os._exit(0)
            connection.close()


if __name__ == "__main__":
    main()
