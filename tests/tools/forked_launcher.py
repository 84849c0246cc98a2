"""Stands in for the `deepspeed` program where ranks are to be forks of one process (rank_forker.py).

It takes the command line that zerobench writes for DeepSpeed's launcher, gives each rank the environment that
DeepSpeed gives it (deepspeed/launcher/launch.py) and a log of its own, and ends with their exit status.
"""

from __future__ import annotations

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
    for option in ("--hostfile", "--num_nodes", "--master_port", "--enable_each_rank_log", "--module"):
        parser.add_argument(option, required=True)
    parser.add_argument("--num_gpus", type=int, required=True)
    parser.add_argument("--no_local_rank", action="store_true")
    asked, arguments = parser.parse_known_args()
    logs = Path(asked.enable_each_rank_log)
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
            "log": str(logs / f"rank{rank}.log"),
            "arguments": arguments,
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
