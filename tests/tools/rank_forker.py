"""Ranks as forks of a process that has imported torch, DeepSpeed and transformers, which takes each of them seconds.

    python -m tests.tools.rank_forker SOCKET

The socket's name is the world of the ranks: `measured` on CPUs, or `emulated`, in the emulator's environment.
Tests that ask what ranks compute, and not how they are started, need no import of their own for each rank: a third of
the suite's time was that. One connection starts the ranks of one launcher (forked_launcher.py): a line of JSON with
their environments comes in, a line with the first exit status that is not 0 goes out when all have ended. Where a rank
fails, or the connection is closed, the others are ended, as DeepSpeed's launcher does.
"""

import atexit
import fcntl
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from zerobench.common.collection import no_collection
from zerobench.config.trial.trial import Evidence
from zerobench.rank.loop import simulator

ROOT = Path(__file__).resolve().parents[2]
LOOK_S = 0.05
WAIT_S = 1.0
START_S = 300.0
OF_RANKS = (
    "deepspeed.ops.op_builder.all_ops",
    "deepspeed.runtime.zero.muon.muon_optimizer",  # DeepSpeed asks it of each optimizer; it imports torch's inductor
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch._subclasses.schema_check_mode",
    "torch.utils.cpp_extension",
    "transformers.models.auto.modeling_auto",
    "zerobench.rank.nvml.sampler",
    "zerobench.rank.loop.launched",
    "zerobench.rank.worlds.measured",
)
"""What measured ranks import besides what simulated ones do."""

OF_SCRIPTS = (
    "deepspeed",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "transformers.models.llama.modeling_llama",
    "transformers.trainer",
)
"""What scripts on an emulated GPU import. None of it begins CUDA, which cannot be used on both sides of a fork."""


@contextmanager
def rank_forker(
    folder: Path, world: Evidence, added: Mapping[str, str], python: Path = Path(sys.executable)
) -> Iterator[Path]:
    """The socket of the process that ranks are forked from, one for all that name `folder`: the first to ask starts it,
    and it ends when all of them have. `added` is what its environment has more than ours.
    """
    path = folder / world.value  # a socket's path may have 107 characters
    with users_of(path).open("w") as users, path.with_suffix(".start").open("w") as starting:
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(starting, fcntl.LOCK_EX)
        if not path.exists():
            # It returns when it listens.
            subprocess.run(
                [str(python), "-m", "tests.tools.rank_forker", str(path)],
                env={**os.environ, "OMP_NUM_THREADS": "1", **added},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                check=True,
                timeout=START_S,
            )
        fcntl.flock(starting, fcntl.LOCK_UN)
        yield path


def users_of(path: Path) -> Path:
    """The file that whoever uses the forker holds locked, shared with the others."""
    return path.with_suffix(".users")


def import_everything(world: Evidence) -> None:
    """What ranks import, or nearly; nothing here starts a thread of Python's."""
    with no_collection():
        for name in OF_SCRIPTS if world is Evidence.EMULATED else (*simulator._PRELOADED, *OF_RANKS):
            import_module(name)
        for name in simulator._WHERE_THERE:
            with suppress(ImportError):
                import_module(name)
    processor = import_module("cpuinfo")  # DeepSpeed asks twice for each kernel, a third of a second each time
    processor.get_cpu_info = cache(processor.get_cpu_info)  # type: ignore[attr-defined]
    processor.get_cpu_info()
    simulator.leave_to_forks()


def fork_rank(rank: Mapping[str, Any]) -> int:
    """Start one rank; its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        try:
            _become(rank)
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:  # noqa: BLE001 -- told as Python tells it
            traceback.print_exc()
        finally:  # as Python ends, but for its threads; the worker ends its process itself
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        os._exit(code)
    return 0


def _become(rank: Mapping[str, Any]) -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(rank["environment"])
    os.chdir(rank["folder"])
    for stream, name in enumerate(("log", "errors"), 1):
        os.dup2(os.open(rank[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    sys.argv = rank["arguments"]
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if sys.argv[0] == "-c":
        exec(sys.argv.pop(1), {"__name__": "__main__"})  # noqa: S102 -- as Python does
    elif rank["module"]:
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
    """Serve, in a fork, until nobody uses it any more."""
    path = Path(sys.argv[1])
    import_everything(Evidence(path.name))
    with socket.socket(socket.AF_UNIX) as listener, users_of(path).open() as users:
        listener.bind(str(path))
        listener.listen()
        if os.fork():
            return
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while is_used(users):
            if not select.select([listener], [], [], WAIT_S)[0]:
                continue
            connection, _ = listener.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listener.close()
                serve_one(connection)
                os._exit(0)
            connection.close()
        path.unlink()  # before the lock goes: who asks next starts another


def is_used(users: IO[str]) -> bool:
    """Whether somebody else has the file locked; else it is locked now."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


if __name__ == "__main__":
    main()
