"""Ranks on one machine are heard on it alone: no port of theirs is open to the network."""

import ipaddress
import json
import os
import subprocess
import sys
from datetime import timedelta

import pytest

from zerobench.launch.run.launcher import free_port
from zerobench.rank.worlds.measured import hold_store
from zerobench.records.progress import Rank

RANK = """
import json, os, sys
from datetime import timedelta
import psutil
import torch
import torch.distributed as dist
from torch.distributed import rpc
from zerobench.records.progress import Rank
from zerobench.rank.worlds.measured import hold_store

number = int(os.environ["RANK"])
store = hold_store(Rank(number, number, 2, "here", os.getpid()), 1, timedelta(seconds=60))
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
rpc.init_rpc(f"rank{number}", rank=number, world_size=2)
heard = [c.laddr.ip for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN]
rpc.shutdown()
print(json.dumps({"sum": ones.item(), "heard": heard}))
dist.barrier()
dist.destroy_process_group()
"""


def environment(**more: str) -> dict[str, str]:
    local = {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **local, "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", **more}


def test_two_ranks_meet_and_listen_on_the_loopback_interface_alone() -> None:
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK], env=environment(RANK=str(rank), MASTER_PORT=port), stdout=subprocess.PIPE
        )
        for rank in range(2)
    ]
    said = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
    assert [one["sum"] for one in said] == [2.0, 2.0]
    heard = [address for one in said for address in one["heard"]]
    assert len(heard) >= 3  # the store, and each rank's gloo
    assert all(ipaddress.ip_address(address.removeprefix("::ffff:")).is_loopback for address in heard), heard


@pytest.mark.parametrize(
    ("rank", "num_nodes", "address"), [(1, 1, "127.0.0.1"), (0, 2, "127.0.0.1"), (0, 1, "10.0.0.7"), (0, 1, "node-7")]
)
def test_other_ranks_other_nodes_and_an_address_that_somebody_chose_are_left_to_torch(
    monkeypatch: pytest.MonkeyPatch, rank: int, num_nodes: int, address: str
) -> None:
    monkeypatch.setenv("MASTER_ADDR", address)
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    assert hold_store(Rank(rank, rank, 2, "here", os.getpid()), num_nodes, timedelta(seconds=1)) is None
