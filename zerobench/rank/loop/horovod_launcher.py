"""Starts the ranks of a Horovod trial: Horovod's own rendezvous server, and processes that find each other through it.

Replaces `horovodrun`, which builds each rank's command as a shell line, starts helper processes for every rank, listens
on all interfaces, and exits with 1 whatever a rank died of. The server (a key-value store over HTTP,
horovod/runner/http/http_server.py) is set up as horovodrun does (gloo_run.py, launch_gloo) but listens only on the
loopback interface, on a port that the kernel chose; rank_processes.py starts the ranks.
"""

import argparse
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zerobench.common.rank_processes import rank_environment, run_ranks
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.folder import TrialFolder

WORKER_MODULE = "zerobench.rank.loop"
_LOOPBACK = "127.0.0.1"


def horovod_environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """Environment of rank `rank` on one machine for Horovod's core (horovod/runner/gloo_run.py, create_slot_env_vars
    and create_run_env_vars).
    """
    return {
        "HOROVOD_HOSTNAME": "localhost",
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(world_size),
        "HOROVOD_LOCAL_RANK": str(rank),
        "HOROVOD_LOCAL_SIZE": str(world_size),
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": _LOOPBACK,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_IFACE": "lo",
    }


def main() -> int:
    """Serve the rendezvous and run the ranks; returns the exit status of the first that failed."""
    parser = argparse.ArgumentParser(prog="zerobench.rank.loop.horovod_launcher", description=__doc__)
    parser.add_argument("--trial-folder", type=Path, required=True, help="folder that holds trial.json")
    folder = TrialFolder(parser.parse_args().trial_folder)
    world_size = TrialSpec.model_validate_json(folder.spec.read_text(encoding="utf-8")).world_size
    with _rendezvous(world_size) as port:
        ranks = range(world_size)
        environments = [rank_environment(r, world_size) | horovod_environment(r, world_size, port) for r in ranks]
        return run_ranks(WORKER_MODULE, ["--trial-folder", str(folder.path)], environments, folder.path / "logs")


@contextmanager
def _rendezvous(world_size: int) -> Iterator[int]:
    """Serve the rendezvous while open; yields its port."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    server = RendezvousHTTPServer((_LOOPBACK, 0), RendezvousHandler, 0)
    server.init(get_host_assignments(parse_hosts(f"localhost:{world_size}"), world_size))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":
    sys.exit(main())
