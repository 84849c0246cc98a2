"""The store by which ranks find each other, heard on this machine alone where all ranks are on it.

torch's store listens on every interface of rank 0's machine, asks nobody who they are, and keeps what it is sent: who
can reach the port can end the run or swap what ranks say to each other. torch takes a socket that listens already, and
a process shares one store of a port with whatever asks for it later (`multi_tenant`): DeepSpeed, a process group of
torch's own, RPC.
"""

import ipaddress
import os
import socket
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, and not re-exported by its stubs

from zerobench.records.progress import Rank


def hold_store(rank: Rank, num_nodes: int, timeout: timedelta) -> TCPStore | None:
    """The store at MASTER_ADDR and MASTER_PORT, on rank 0 of a run on one machine; it must be kept until others join.

    None elsewhere, where torch makes it, and where MASTER_ADDR is no address of the machine's own: somebody chose it.

    Raises OSError: the port is taken.
    """
    address = os.environ["MASTER_ADDR"]
    if rank.rank != 0 or num_nodes > 1 or not _is_loopback(address):
        return None
    port = int(os.environ["MASTER_PORT"])
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family, backlog=socket.SOMAXCONN)
    return TCPStore(
        address,
        port,
        world_size=rank.world_size,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=listener.detach(),
    )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
