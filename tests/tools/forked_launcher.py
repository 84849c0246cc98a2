"""Stands in for the `deepspeed` program where ranks are to be forks of one process (rank_forker.py).

It takes the command line that zerobench writes for DeepSpeed's launcher, gives each rank the environment that
DeepSpeed gives it (deepspeed/launcher/launch.py) and a log of its own or ours, and ends with their exit status.
"""

import argparse
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SOCKET = "ZEROBENCH_TESTS_FORKER"
SOCKET_OF_SCRIPTS = "ZEROBENCH_TESTS_FORKER_OF_SCRIPTS"
OURS = {"log": f"/proc/{os.getpid()}/fd/1", "errors": f"/proc/{os.getpid()}/fd/2"}
"""Where what a rank prints comes out here."""
PLAYED = "zerobench.launch.emulate.inside"
"""What `zerobench emulate` starts, without a launcher; it, or a program's text, is the rank then."""


def main() -> int:
    """Start the ranks and wait for them."""
    if sys.argv[1] in {PLAYED, "-c"}:
        rank = {"environment": dict(os.environ), "folder": str(Path.cwd()), "module": True, "arguments": sys.argv[1:]}
        return fork(os.environ[SOCKET_OF_SCRIPTS], [rank | OURS])
    parser = argparse.ArgumentParser()
    for option in ("--hostfile", "--num_nodes", "--master_port"):
        parser.add_argument(option, required=True)
    parser.add_argument("--num_gpus", type=int, required=True)
    parser.add_argument("--enable_each_rank_log", type=Path, metavar="FOLDER")
    parser.add_argument("--no_local_rank", action="store_true", required=True)
    parser.add_argument("--module", action="store_true")
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    logs = asked.enable_each_rank_log
    if logs:
        logs.mkdir(parents=True, exist_ok=True)
    ranks = [
        {
            "environment": {
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(asked.num_gpus),
                "LOCAL_SIZE": str(asked.num_gpus),
                "CROSS_RANK": "0",
                "CROSS_SIZE": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": asked.master_port,
            },
            "folder": str(Path.cwd()),
            **({"log": log, "errors": log} if (log := logs and str(logs / f"rank{rank}.log")) else OURS),
            "module": asked.module,
            "arguments": [asked.program, *asked.arguments],
        }
        for rank in range(asked.num_gpus)
    ]
    return fork(os.environ[SOCKET], ranks)


def fork(path: str, ranks: Sequence[Mapping[str, object]]) -> int:
    """Have the process that listens at `path` fork ranks, and wait for them; an exit status as a shell tells it."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(json.dumps(ranks).encode() + b"\n")
        answer = connection.makefile("r").readline()
    code = int(answer) if answer else 1
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
