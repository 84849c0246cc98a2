"""Where torch's rendezvous store listens, which SECURITY.md and `zerobench doctor` state: read off real processes."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from zerobench.common.rank_processes import free_ports

MEET = """
import os, socket, sys
import psutil
import torch.distributed as dist

port = int(os.environ["MASTER_PORT"])
given = {}
if sys.argv[1] == "descriptor":
    own = socket.socket()
    own.bind(("127.0.0.1", port))
    own.listen()
    store = dist.TCPStore("127.0.0.1", port, 1, True, master_listen_fd=own.detach())
    given = {"store": store, "rank": 0, "world_size": 1}
elif sys.argv[1] == "file":
    given = {"init_method": "file://" + sys.argv[2], "rank": 0, "world_size": 1}
dist.init_process_group("gloo", **given)
sockets = psutil.Process().net_connections("inet")
print([one.laddr.ip for one in sockets if one.status == "LISTEN" and one.laddr.port == port])
"""


@pytest.mark.parametrize(
    ("how", "variables", "addresses"),
    [
        ("env", {"MASTER_ADDR": "127.0.0.1"}, ["::"]),
        ("env", {"MASTER_ADDR": "localhost", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}, ["::"]),
        ("env", {"MASTER_ADDR": "127.0.0.1", "USE_LIBUV": "0"}, ["::"]),
        ("descriptor", {}, ["127.0.0.1"]),
        ("file", {}, []),
    ],
)
def test_the_store_listens_where_the_documents_say(
    tmp_path: Path, how: str, variables: dict[str, str], addresses: list[str]
) -> None:
    [port] = free_ports(1)
    environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": str(port), **variables}
    command = [sys.executable, "-c", MEET, how, str(tmp_path / "store")]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=300)
    everywhere = {"::", "0.0.0.0"}  # noqa: S104 -- a machine without IPv6
    heard = ["::" if one in everywhere else one for one in ast.literal_eval(ended.stdout.splitlines()[-1])]
    assert heard == addresses
