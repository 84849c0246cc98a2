"""Starts the processes of a TensorFlow trial, after the main environment's Python has written their starting point.

tf.distribute has no launcher: each process reads the cluster and its own task from TF_CONFIG
(tf.distribute.cluster_resolver.TFConfigClusterResolver). Mirrored replicas are one process. With a parameter server,
rank 0 is the task `ps`, the others are its workers, and they share a connection (CoordinatorsEnd, WorkersEnd).

The connection carries what TensorFlow's own does not: a worker of ParameterServerStrategy serves the coordinator
without knowing when a step begins or how it ends. The processes use it to keep in step, and the coordinator to report
losses. It carries only bytes, no pickled objects (multiprocessing.connection, send_bytes), on the loopback interface,
to clients with a key from this launcher.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from zerobench.common.rank_processes import free_ports, rank_environment, run_ranks
from zerobench.config.derived.batch import processes_of
from zerobench.config.derived.roles import num_servers
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.folder import TrialFolder

_PAUSE_S = 0.05


class CoordinatorsEnd:
    """The coordinator's connections to all workers."""

    def __init__(self, port: int, key: bytes, num_workers: int) -> None:
        """Wait until all workers have connected. Raises OSError if the port is taken."""
        with Listener((_LOOPBACK, port), authkey=key, backlog=num_workers) as listener:
            self._workers: Sequence[Connection] = [listener.accept() for _ in range(num_workers)]

    def gather(self) -> None:
        """Wait until all workers are waiting. Raises EOFError or OSError if one is gone."""
        for worker in self._workers:
            worker.recv_bytes()

    def tell(self, message: bytes = b"") -> None:
        """Release the workers with a message. Raises OSError if one is gone."""
        for worker in self._workers:
            worker.send_bytes(message)


class WorkersEnd:
    """The connection of one worker."""

    def __init__(self, port: int, key: bytes) -> None:
        """Connect, and retry while the coordinator is still importing."""
        while True:
            try:
                self._coordinator = Client((_LOOPBACK, port), authkey=key)
            except ConnectionRefusedError:
                time.sleep(_PAUSE_S)
            else:
                return

    def wait(self) -> bytes:
        """Wait for the coordinator's message. Raises EOFError or OSError if it is gone."""
        self._coordinator.send_bytes(b"")
        return self._coordinator.recv_bytes()


PORT_VARIABLE = "ZEROBENCH_COORDINATOR_PORT"
"""Port on which the coordinator of a parameter server listens for its workers."""
KEY_VARIABLE = "ZEROBENCH_COORDINATOR_KEY"
"""Key that authenticates a worker."""

WORKER_MODULE = "zerobench.rank.tensorflow"
_LOOPBACK = "127.0.0.1"
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", "KERAS_BACKEND": "tensorflow"}
_NO_PROXY = {"no_proxy": _LOOPBACK, "NO_PROXY": _LOOPBACK, "no_grpc_proxy": _LOOPBACK}
"""Without this, gRPC uses the machine's proxy even for the loopback interface."""


def tensorflow_environments(num_servers: int, ports: Sequence[int], line_port: int) -> list[dict[str, str]]:
    """Environment of each process; with several, TF_CONFIG names one port for each, servers first."""
    addresses = [f"{_LOOPBACK}:{port}" for port in ports]
    cluster = {"worker": addresses[num_servers:]}
    line = {}
    if num_servers:
        cluster["ps"] = addresses[:num_servers]
        line = {PORT_VARIABLE: str(line_port), KEY_VARIABLE: secrets.token_hex(16)}
    environments = [{**rank_environment(rank, len(ports)), **_QUIET, **_NO_PROXY, **line} for rank in range(len(ports))]
    for rank, added in enumerate(environments if len(ports) > 1 else []):
        is_server = rank < num_servers
        task = {"type": "ps" if is_server else "worker", "index": rank if is_server else rank - num_servers}
        added["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    return environments


def main() -> int:
    """Write the starting point, then run the processes; returns the exit status of the first that failed."""
    parser = argparse.ArgumentParser(prog="zerobench.rank.tensorflow.launcher", description=__doc__)
    parser.add_argument("--trial-folder", type=Path, required=True, help="folder that holds trial.json")
    parser.add_argument("--start-python", required=True, help="interpreter of the environment that has torch")
    options = parser.parse_args()
    folder = TrialFolder(options.trial_folder)
    trial = TrialSpec.model_validate_json(folder.spec.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="zerobench-") as start:
        command = [options.start_python, "-m", "zerobench.rank.loop.start_files", "--trial-folder", str(folder.path)]
        drawn = subprocess.run([*command, "--into", start], stdin=subprocess.DEVNULL, check=False)
        if drawn.returncode:
            return drawn.returncode if drawn.returncode > 0 else 256 + drawn.returncode
        *ports, line_port = free_ports(processes_of(trial) + 1)
        environments = tensorflow_environments(num_servers(trial), ports, line_port)
        arguments = ["--trial-folder", str(folder.path), "--start", start]
        os.environ.pop("TF_CONFIG", None)  # inherited from our caller
        return run_ranks(WORKER_MODULE, arguments, environments, folder.path / "logs")


if __name__ == "__main__":
    sys.exit(main())
