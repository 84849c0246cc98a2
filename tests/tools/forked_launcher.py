"""Stands in for the `deepspeed` program where ranks are to be forks of one process (rank_forker.py).

It takes the command line that zerobench writes for DeepSpeed's launcher, gives each rank the environment that
DeepSpeed gives it (deepspeed/launcher/launch.py) and a log of its own or ours, and ends with their exit status.
"""

import argparse
import json
import os
import socket
import sys
from pathlib import Path

SOCKET = "ZEROBENCH_TESTS_FORKER"


def main() -> int:
    """Start the ranks and wait for them."""
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
            "log": str(logs / f"rank{rank}.log") if logs else f"/proc/{os.getpid()}/fd/1",
            "module": asked.module,
            "arguments": [asked.program, *asked.arguments],
        }
        for rank in range(asked.num_gpus)
    ]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[SOCKET])
        connection.sendall(json.dumps(ranks).encode() + b"\n")
        answer = connection.makefile("r").readline()
    code = int(answer) if answer else 1
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
