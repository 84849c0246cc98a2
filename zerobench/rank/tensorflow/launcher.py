"""Starts the processes of a TensorFlow trial: first the suite's own Python draws what they start from, then TF_CONFIG.

tf.distribute has no launcher: each process reads from TF_CONFIG who all are and which one it is
(tf.distribute.cluster_resolver.TFConfigClusterResolver). Mirrored replicas are one process. Of a parameter server rank
0 is the task `ps`, the others are its workers, and all of them share a line of their own (parameter_server.py).
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from zerobench.common.rank_processes import free_ports, rank_environment, run_ranks
from zerobench.config.derived.batch import processes_of
from zerobench.config.derived.roles import num_servers
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.folder import TrialFolder

PORT_VARIABLE = "ZEROBENCH_COORDINATOR_PORT"
"""Where the coordinator of a parameter server listens for its workers (link.py)."""
KEY_VARIABLE = "ZEROBENCH_COORDINATOR_KEY"
"""What a worker must know to be listened to."""

WORKER_MODULE = "zerobench.rank.tensorflow"
_LOOPBACK = "127.0.0.1"
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", "KERAS_BACKEND": "tensorflow"}
_NO_PROXY = {"no_proxy": _LOOPBACK, "NO_PROXY": _LOOPBACK, "no_grpc_proxy": _LOOPBACK}
"""gRPC goes through the machine's proxy, also to itself, unless told otherwise."""


def tensorflow_environments(num_servers: int, ports: Sequence[int], line_port: int) -> list[dict[str, str]]:
    """What each process has of its own: TF_CONFIG names one port for each of several, the servers first."""
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
    """Draw, run the processes; the exit status of the first that failed."""
    parser = argparse.ArgumentParser(prog="zerobench.rank.tensorflow.launcher", description=__doc__)
    parser.add_argument("--trial-folder", type=Path, required=True, help="folder that holds trial.json")
    parser.add_argument("--start-python", required=True, help="interpreter of the environment that has torch")
    asked = parser.parse_args()
    folder = TrialFolder(asked.trial_folder)
    trial = TrialSpec.model_validate_json(folder.spec.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="zerobench-") as start:
        command = [asked.start_python, "-m", "zerobench.rank.loop.start_files", "--trial-folder", str(folder.path)]
        drawn = subprocess.run([*command, "--into", start], stdin=subprocess.DEVNULL, check=False)
        if drawn.returncode:
            return drawn.returncode if drawn.returncode > 0 else 256 + drawn.returncode
        *ports, line_port = free_ports(processes_of(trial) + 1)
        environments = tensorflow_environments(num_servers(trial), ports, line_port)
        arguments = ["--trial-folder", str(folder.path), "--start", start]
        os.environ.pop("TF_CONFIG", None)  # of whoever started us
        return run_ranks(WORKER_MODULE, arguments, environments, folder.path / "logs")


if __name__ == "__main__":
    sys.exit(main())
