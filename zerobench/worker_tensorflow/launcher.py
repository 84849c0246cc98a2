"""Starts the processes of a TensorFlow trial: first the suite's own Python draws what they start from, then TF_CONFIG.

MultiWorkerMirroredStrategy has no launcher: each process reads from TF_CONFIG who all are and which one it is
(tf.distribute.cluster_resolver.TFConfigClusterResolver). Mirrored replicas are one process.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from zerobench.folder import TrialFolder
from zerobench.rank_processes import rank_environment, run_ranks
from zerobench.spec.batch import processes_of
from zerobench.spec.trial import TrialSpec

WORKER_MODULE = "zerobench.worker_tensorflow"
_LOOPBACK = "127.0.0.1"
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", "KERAS_BACKEND": "tensorflow"}
_NO_PROXY = {"no_proxy": _LOOPBACK, "NO_PROXY": _LOOPBACK, "no_grpc_proxy": _LOOPBACK}
"""gRPC goes through the machine's proxy, also to itself, unless told otherwise."""


def tensorflow_environment(rank: int, ports: Sequence[int]) -> dict[str, str]:
    """What process `rank` has of its own: TF_CONFIG names one port for each of several workers."""
    added = {**rank_environment(rank, len(ports)), **_QUIET, **_NO_PROXY}
    if len(ports) > 1:
        workers = [f"{_LOOPBACK}:{port}" for port in ports]
        added["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})
    return added


def main() -> int:
    """Draw, run the processes; the exit status of the first that failed."""
    parser = argparse.ArgumentParser(prog="zerobench.worker_tensorflow.launcher", description=__doc__)
    parser.add_argument("--trial-folder", type=Path, required=True, help="folder that holds trial.json")
    parser.add_argument("--start-python", required=True, help="interpreter of the environment that has torch")
    asked = parser.parse_args()
    folder = TrialFolder(asked.trial_folder)
    trial = TrialSpec.model_validate_json(folder.spec.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="zerobench-") as start:
        command = [asked.start_python, "-m", "zerobench.worker.start_files", "--trial-folder", str(folder.path)]
        drawn = subprocess.run([*command, "--into", start], stdin=subprocess.DEVNULL, check=False)
        if drawn.returncode:
            return drawn.returncode if drawn.returncode > 0 else 256 + drawn.returncode
        ports = _free_ports(processes_of(trial))
        environments = [tensorflow_environment(rank, ports) for rank in range(len(ports))]
        arguments = ["--trial-folder", str(folder.path), "--start", start]
        os.environ.pop("TF_CONFIG", None)  # of whoever started us
        return run_ranks(WORKER_MODULE, arguments, environments, folder.path / "logs")


def _free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now, all different."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((_LOOPBACK, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


if __name__ == "__main__":
    sys.exit(main())
