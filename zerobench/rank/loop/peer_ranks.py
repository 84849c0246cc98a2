"""All ranks of a small world on the GPUs of emulated nodes: a process each, which find each other by torch's own store.

Each node is one account of memory that its ranks share, as processes of a real node share their driver. The store is
this process's, so that no rank waits for another's end.
"""

import ctypes
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from zerobench.common.rank_processes import leave
from zerobench.config.hardware.hardware import known_gpu
from zerobench.config.trial.trial import TrialSpec
from zerobench.emulator.emulator import ACCOUNT_VARIABLE
from zerobench.emulator.gpu import VARIABLE, EmulatedGpu
from zerobench.rank.loop.with_room import AGAIN
from zerobench.records.progress import Rank

PATIENCE_S = 60.0
"""How long the other ranks may go on when one has failed: they may wait for it in vain."""
_POLL_S = 0.05
_PARENT_DIED = 1  # PR_SET_PDEATHSIG (prctl(2))

Play = Callable[[Rank], int]


def play_peers(trial: TrialSpec, play: Play) -> int:
    """Play every rank of `trial`; the exit status: AGAIN where one did not fit, else the first that failed."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, and not re-exported by its stubs

    with TemporaryDirectory(prefix="zerobench-nodes-") as accounts:
        listener = socket.create_server(("127.0.0.1", 0), backlog=socket.SOMAXCONN)
        port = listener.getsockname()[1]
        ranks = {_fork(trial, number, port, Path(accounts), play): number for number in range(trial.world_size)}
        fd = listener.detach()
        store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=fd)
        codes = _await(ranks)
        del store
    for rank, code in sorted(codes.items()):
        if code < 0:
            print(f"rank {rank} was ended by signal {-code}", file=sys.stderr)  # noqa: T201 - its trial's stderr
    failed = [code for _, code in sorted(codes.items()) if code]
    return AGAIN if AGAIN in failed else min(1, len(failed))


def _fork(trial: TrialSpec, number: int, port: int, accounts: Path, play: Play) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    ctypes.CDLL(None).prctl(_PARENT_DIED, signal.SIGKILL)  # whoever ends the trial ends all of its ranks
    if os.getppid() != parent:
        os._exit(1)
    per_node = trial.gpus_per_node
    rank = Rank(
        rank=number,
        local_rank=number % per_node,
        world_size=trial.world_size,
        hostname=socket.gethostname(),
        pid=os.getpid(),
        node=number // per_node,
    )
    os.environ.update(
        {
            VARIABLE: EmulatedGpu.build(known_gpu(trial.prediction.gpu or "")).variable(per_node),
            ACCOUNT_VARIABLE: str(accounts / f"node{rank.node}"),
            "CUDA_VISIBLE_DEVICES": str(rank.local_rank),  # torch has counted one device before it was forked
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
        }
    )
    code = 1
    try:
        code = play(rank)
    except BaseException:  # noqa: BLE001 - the process ends here, and says why
        traceback.print_exc()
    return leave(code)


def _await(ranks: dict[int, int]) -> dict[int, int]:
    """Exit status by rank, as in subprocess, of processes by number; those that wait for a failed one are ended."""
    codes: dict[int, int] = {}
    give_up_at: float | None = None
    while ranks:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            codes[ranks.pop(pid)] = code
            if code and give_up_at is None:
                give_up_at = time.monotonic() + PATIENCE_S
        elif give_up_at is not None and time.monotonic() > give_up_at:
            for waiting in ranks:
                os.kill(waiting, signal.SIGKILL)
            give_up_at = None
        else:
            time.sleep(_POLL_S)
    return codes
