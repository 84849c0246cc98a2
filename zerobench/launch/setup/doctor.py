"""Checks of this machine, as a run's preflight makes them, each with a remedy.

No check imports torch, and none can hang the command: each runs in a thread that is abandoned after its time (a broken
driver may never answer).
"""

from __future__ import annotations

import ipaddress
import math
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil

from zerobench.common.distribution import DISTRIBUTION, namesake
from zerobench.common.training_python import training_python
from zerobench.common.units import format_bytes
from zerobench.config.derived.availability import FRAMEWORKS
from zerobench.config.derived.machine import DEFAULT_CPU_RANKS
from zerobench.config.hardware.toolchain import (
    can_build_ops,
    can_compile_graphs,
    has_libaio,
    op_is_built,
    package_folder,
    torch_cuda_version,
    torch_has_cuda,
)
from zerobench.launch.machine.compile_locks import Holder, holder_of, locks
from zerobench.launch.machine.environment import emulated_torch, limits, packages
from zerobench.launch.machine.installed import requirement
from zerobench.launch.machine.tried_versions import untried
from zerobench.launch.run.room import PLACE, shortage
from zerobench.rank.nvml.nvml import DeviceInfo, DeviceListing, DeviceReader, list_devices
from zerobench.rank.nvml.nvml_visible import VARIABLE, choose_visible

PATIENCE_S = 20.0
"""Seconds for all checks together."""
_LOCKED_BYTES = 2**30
_OPEN_FILES = 4096
"""Minimum for a rank that pins buffers and opens a file for each swapped tensor."""
_WRITTEN_BYTES = 64 * 2**20
_WRITING_S = 2.0
_CHUNK_BYTES = 4 * 2**20
SHARED_MEMORY = str(PLACE)
DRIVER = "driver"
_IDLE_BYTES = 2**30
"""More than a driver and its display use of an idle GPU."""
_UNTRIED = "compare a peak of yours with torch's own (torch.cuda.max_memory_allocated)"
_IN_THE_WAY = "lays its files into the folder that this one is imported from"
_APART = f"python -m pip uninstall zerobench && python -m pip install --force-reinstall --no-deps {DISTRIBUTION}"
_WITHOUT_GPUS = "install the driver; without GPUs: CPU ranks, zerobench plan"
_WAIT = f"wait for it, or choose others with {VARIABLE}"


class Standing(StrEnum):
    """Result of a check."""

    GOOD = "ok"
    LIMITED = "limited"
    """Something cannot run, or runs worse."""
    MISSING = "missing"


@dataclass(frozen=True)
class Finding:
    """One finding of a check."""

    what: str
    standing: Standing
    finding: str
    remedy: str = ""


Check = Callable[[], Iterator[Finding]]


def examine(reports: Path, more: Mapping[str, Check]) -> list[Finding]:
    """Return all findings in the order of the checks, `more` last. `reports` is the folder of runs."""
    return run_checks(
        {
            "packages": _packages,
            "GPUs": _gpus,
            "compilers": _compilers,
            "libaio": _libaio,
            "kernel locks": _locks,
            "limits": _limits,
            SHARED_MEMORY: _shared_memory,
            "disk": lambda: _disk(reports),
            "rendezvous": _rendezvous,
            "emulated GPU": _emulator,
            **more,
        },
        PATIENCE_S,
    )


def run_checks(checks: Mapping[str, Check], patience_s: float) -> list[Finding]:
    """Run `checks` in parallel; one that has not ended after `patience_s` seconds becomes a finding under its name."""
    findings: dict[str, list[Finding]] = {}

    def do(name: str, check: Check) -> None:
        try:
            findings[name] = list(check())
        except OSError as error:
            findings[name] = [Finding(name, Standing.LIMITED, str(error))]

    threads = [threading.Thread(target=do, args=item, daemon=True) for item in checks.items()]
    for thread in threads:
        thread.start()
    end_s = time.monotonic() + patience_s
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))
    silent = f"no answer within {patience_s:g} s"
    return [finding for name in checks for finding in findings.get(name, [Finding(name, Standing.MISSING, silent)])]


def can_run(findings: Sequence[Finding]) -> dict[str, bool]:
    """Return the kinds of trials and whether each can run here; formulas always can."""
    good = {finding.what for finding in findings if finding.standing is Standing.GOOD}
    bad = {finding.what for finding in findings if finding.standing is Standing.MISSING}
    frameworks = set(FRAMEWORKS) <= good
    return {
        "measured on GPUs": frameworks and {"GPUs", "torch for CUDA"} <= good and DRIVER not in bad,
        "measured on CPU ranks": frameworks and {"compilers", SHARED_MEMORY} <= good,
        "simulated": frameworks,
        "emulated": frameworks and "emulated GPU" in good,
        "formula": True,
        "submitted to Slurm": "Slurm" in good,
    }


def _packages() -> Iterator[Finding]:
    versions = packages()
    for name in FRAMEWORKS:
        is_there, remedy = package_folder(name) is not None, f"python -m pip install '{requirement(name)}'"
        yield _either(name, is_there, versions.get(name) or "installed", "not installed", remedy)
    python = {"python": training_python().version}
    for line in untried(python | {name: versions.get(name) for name in FRAMEWORKS}):
        yield Finding("versions", Standing.LIMITED, line, _UNTRIED)
    if (other := namesake()) is not None:
        yield Finding(
            "namesake", Standing.LIMITED, f"the other package called zerobench, {other}, {_IN_THE_WAY}", _APART
        )
    cuda = torch_cuda_version()
    if cuda is not None:
        nccl = next((f", NCCL {version}" for name, version in versions.items() if name.startswith("nvidia-nccl")), "")
        yield Finding("torch for CUDA", Standing.GOOD, f"built for CUDA {cuda}{nccl}")


def _gpus() -> Iterator[Finding]:
    listing = list_devices()
    if not listing.devices:
        yield Finding("GPUs", Standing.MISSING, listing.reason or "none", _WITHOUT_GPUS)
        return
    yield _visible(listing)
    cuda = torch_cuda_version()
    if cuda is None:
        yield Finding("torch for CUDA", Standing.MISSING, "torch was built without CUDA", "install torch's CUDA build")
    elif _major(listing.cuda_version) < _major(cuda):
        text = f"runs CUDA {listing.cuda_version}, and torch was built for {cuda}"
        yield Finding(DRIVER, Standing.MISSING, text, "update the driver, or install an older CUDA build of torch")
    for fault in listing.faults:
        yield Finding("GPU fault", Standing.LIMITED, fault, "details: nvidia-smi -q; often a reset or a reboot helps")
    for device in listing.devices:
        yield from _use(device)


def _visible(listing: DeviceListing) -> Finding:
    """Name the GPUs, those split by MIG, and those hidden by CUDA_VISIBLE_DEVICES."""
    names = ", ".join(dict.fromkeys(device.name for device in listing.devices))
    parts = [f"{len(listing.devices)}: {names}", f"driver {listing.driver_version}, CUDA {listing.cuda_version}"]
    split = [device for device in listing.devices if device.mig_uuids]
    parts += [f"GPU {device.index} split into {len(device.mig_uuids)} by MIG" for device in split]
    hidden = choose_visible(listing, os.environ)
    if hidden.not_sampled:
        parts.append(f"{len(hidden.not_sampled)} hidden by {VARIABLE}={os.environ[VARIABLE]}")
    if hidden.sampled:
        return Finding("GPUs", Standing.GOOD, "; ".join(parts))
    return Finding("GPUs", Standing.MISSING, "; ".join(parts), f"unset {VARIABLE}")


def _use(device: DeviceInfo) -> Iterator[Finding]:
    """Report the processes that use a GPU."""
    reader = DeviceReader.open(device.uuid, device.pci_bus_id)
    processes, used = reader.processes(), reader.read(power=False).used_bytes
    for process in processes:
        holds = "" if process.used_bytes is None else f" holds {format_bytes(process.used_bytes)}"
        text = f"process {process.pid} ({process.name or 'not visible here'}){holds}"
        yield Finding(f"GPU {device.index} in use", Standing.LIMITED, text, _WAIT)
    # A container sees used memory, but not the processes outside it.
    if not processes and used is not None and used > _IDLE_BYTES:
        text = f"{format_bytes(used)} used by processes not visible here"
        yield Finding(f"GPU {device.index} in use", Standing.LIMITED, text, _WAIT)


def _major(version: str | None) -> float:
    """Return the major version."""
    first = (version or "").partition(".")[0]
    # A driver runs builds for any minor version of its CUDA; one without a version counts as new.
    return int(first) if first.isdigit() else math.inf


def _compilers() -> Iterator[Finding]:
    on_cuda = torch_has_cuda() and bool(list_devices().devices)
    needs = "install c++, ninja and nvcc" if on_cuda else "install c++ and ninja"
    can, cannot = "DeepSpeed's kernels can be compiled", "DeepSpeed's kernels cannot be compiled"
    yield _either("compilers", can_build_ops(for_cuda=on_cuda), can, cannot, needs)
    if not can_compile_graphs(for_cuda=on_cuda):
        needs = "g++ and Triton" if on_cuda else "g++"
        yield Finding("torch.compile", Standing.LIMITED, f"needs {needs}", f"install {needs}")


def _libaio() -> Iterator[Finding]:
    is_there, remedy = op_is_built("async_io") or has_libaio(), "install libaio-dev (libaio-devel)"
    yield _either("libaio", is_there, "offload to NVMe can run", "no offload to NVMe", remedy, Standing.LIMITED)


def _locks() -> Iterator[Finding]:
    """Report locks of dead compilations, which the next run removes, and locks whose holder is unknown."""
    for lock in locks(os.environ):
        holder = holder_of(lock)
        if holder is Holder.DEAD:
            yield Finding("kernel lock", Standing.GOOD, f"stale, removed by the next run: {lock}")
        elif holder is Holder.UNKNOWN:
            found, remedy = f"held by {holder.value}: {lock}", f"if no compilation is running: rm {lock}"
            yield Finding("kernel lock", Standing.LIMITED, found, remedy)


def _limits() -> Iterator[Finding]:
    values = limits(Path("/"))
    remedy = "ulimit -l unlimited, for NVMe offload and InfiniBand"
    yield _compare_limit("locked memory", values["locked_memory_bytes"], _LOCKED_BYTES, remedy, format_bytes)
    yield _compare_limit("open files", values["open_files"], _OPEN_FILES, f"ulimit -n {16 * _OPEN_FILES}", str)
    memory, cores = values["cgroup_memory_bytes"], values["cgroup_cores"]
    words = [f"{format_bytes(memory)} of memory"] if memory is not None else []
    words += [f"{cores:g} {'core' if cores == 1 else 'cores'}"] if cores is not None else []
    yield Finding("cgroup", Standing.GOOD, " and ".join(words) or "no limit")


def _compare_limit(what: str, value: int | None, least: int, remedy: str, show: Callable[[int], str]) -> Finding:
    if value is None:
        return Finding(what, Standing.GOOD, "no limit")
    if value >= least:
        return Finding(what, Standing.GOOD, show(value))
    return Finding(what, Standing.LIMITED, f"{show(value)}, {show(least)} recommended", remedy)


def _shared_memory() -> Iterator[Finding]:
    lacks = shortage(DEFAULT_CPU_RANKS)
    found = "" if lacks is None else lacks.message.partition(";")[0]
    room = f"room for {DEFAULT_CPU_RANKS} CPU ranks"
    yield _either(SHARED_MEMORY, lacks is None, room, found, "docker run --shm-size=1g")


def _disk(reports: Path) -> Iterator[Finding]:
    """Check the free space and write rate of the folder of runs, with at most 64 MiB or two seconds of writing."""
    folder = next(path for path in (reports.absolute(), *reports.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(folder).free
    if free < 2 * _WRITTEN_BYTES:
        yield Finding("disk", Standing.MISSING, f"{format_bytes(free)} free in {folder}", "choose another --reports")
        return
    try:
        rate = format_bytes(int(write_bytes_per_s(folder)))
    except OSError as error:
        yield Finding("disk", Standing.MISSING, f"{folder}: {error.strerror}", "choose another --reports")
        return
    yield Finding("disk", Standing.GOOD, f"writes {rate}/s, {format_bytes(free)} free in {folder}")


def write_bytes_per_s(folder: Path) -> float:
    """Return the write rate of `folder` in bytes per second, synchronised to the device."""
    chunk, written = bytes(_CHUNK_BYTES), 0
    path = folder / f".zerobench-{os.getpid()}-{threading.get_ident()}"
    began_s = time.monotonic()
    try:
        with path.open("xb", buffering=0) as file:
            while written < _WRITTEN_BYTES and time.monotonic() - began_s < _WRITING_S:
                written += file.write(chunk)
            os.fsync(file.fileno())
    finally:
        path.unlink(missing_ok=True)
    return written / (time.monotonic() - began_s)


def _rendezvous() -> Iterator[Finding]:
    """Report the interfaces that can reach the store through which a script's ranks meet."""
    internet = {socket.AF_INET, socket.AF_INET6}
    reached = {
        address.address.partition("%")[0]: name
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family in internet
    }
    # torch listens on all interfaces, whatever address the ranks are given (TCPStore; SECURITY.md); the store of
    # zerobench's own ranks on one node is bound to loopback.
    outside = [f"{name} {ip}" for ip, name in reached.items() if not ipaddress.ip_address(ip).is_loopback]
    found = f"a script's store (torch's, no password) listens on all interfaces: {', '.join(outside)}"
    remedy = "firewall, or on one node: unshare -rn (SECURITY.md)"
    yield _either("rendezvous", not outside, "reached from this machine alone", found, remedy, Standing.LIMITED)


def _emulator() -> Iterator[Finding]:
    made = emulated_torch()
    yield _either("emulated GPU", made is not None, f"torch {made}", "not set up", "zerobench setup emulator")


def _either(
    what: str, is_good: bool, good: str, bad: str, remedy: str, otherwise: Standing = Standing.MISSING
) -> Finding:
    return Finding(what, Standing.GOOD, good) if is_good else Finding(what, otherwise, bad, remedy)
