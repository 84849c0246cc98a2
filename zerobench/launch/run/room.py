"""Room for files before a trial's first step: on the disk, and in /dev/shm."""

import os
import shutil
from pathlib import Path

from zerobench.common.units import format_bytes
from zerobench.config.derived.host_memory import element_bytes
from zerobench.config.models.parameters import num_parameters
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.launch.run.executor import Executor
from zerobench.launch.run.kernels import kernels_of
from zerobench.launch.run.launcher import launched_processes
from zerobench.records.folder import TrialFolder
from zerobench.records.records import Failure

PLACE = Path("/dev/shm")  # noqa: S108 -- where shm_open(3) puts it
SEGMENT_BYTES = 2 * 2**20 + 2 * 32 * 2**20 + 4096
"""Bytes per rank (struct allreduce_workspace), in whole pages."""


def lacks_room_for_weights(trial: TrialSpec, folder: TrialFolder) -> Failure | None:
    """Return why the weight files of `trial` do not fit in `folder`; None if they do, or if their size is unknown.
    Simulated weights are headers only.
    """
    elements = num_parameters(trial.model)
    if not trial.is_loaded or trial.evidence is Evidence.SIMULATED or elements is None:
        return None
    needed, free = elements * element_bytes(trial), shutil.disk_usage(folder.path).free
    if needed <= free:
        return None
    why = f"their files need {format_bytes(needed)}; use --reports on a larger disk, or weights drawn"
    what = f"weights {trial.weights}: {folder.path} has {format_bytes(free)} free"
    return _failure(what, f", {why}", needed, free)


def lacks_shared_memory(trial: TrialSpec, folder: TrialFolder, executor: Executor) -> Failure | None:
    """Return why the shared-memory segments of `trial`, whose files are in `folder`, do not fit, if so."""
    # Without room ranks hang, or die by a signal: DeepSpeed's shared-memory all-reduce for CPU ranks makes a segment
    # for each in /dev/shm and checks no error (csrc/cpu/comm/shm.cpp). Containers have 64 MB of it, some read-only.
    if trial.evidence is not Evidence.MEASURED or "deepspeed_shm_comm" not in kernels_of(trial, folder, executor):
        return None
    return shortage(launched_processes(trial))


def shortage(num_ranks: int, place: Path = PLACE) -> Failure | None:
    """Return why the segments of `num_ranks` ranks do not fit in `place`; None if they do."""
    needed_bytes = num_ranks * SEGMENT_BYTES
    try:
        file_system = os.statvfs(place)
    except OSError as error:
        return _no_segments(f"{place}: {error.strerror}", needed_bytes, None)
    free = file_system.f_bavail * file_system.f_frsize
    if file_system.f_flag & os.ST_RDONLY or not os.access(place, os.W_OK):
        return _no_segments(f"{place} cannot be written", needed_bytes, free)
    if free >= needed_bytes:
        return None
    return _no_segments(f"{place} has {format_bytes(free)} free", needed_bytes, free)


def _no_segments(what: str, needed_bytes: int, free: int | None) -> Failure:
    why = f"DeepSpeed's shared-memory all-reduce for CPU ranks needs {format_bytes(needed_bytes)}"
    return _failure(what, f"; {why}; in a container: docker run --shm-size=1g", needed_bytes, free)


def _failure(what: str, why: str, needed_bytes: int, free: int | None) -> Failure:
    return Failure(message=f"{what}{why}", bytes_asked=needed_bytes, bytes_free=free, evidence=what)
