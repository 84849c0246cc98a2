"""Facts out of environment.json, each as one line of text; None for what a run did not record, or not in this form."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from zerobench.report.words.column_units import plain

Environment = Mapping[str, Any]

_SHORT_COMMIT = 12

FACTS: Mapping[str, tuple[str, ...]] = {
    "CUDA of torch": ("torch_build", "cuda"),
    "HIP of torch": ("torch_build", "hip"),
    "torch commit": ("torch_build", "git_version"),
    "driver": ("driver", "version"),
    "CUDA of driver": ("driver", "cuda_version"),
    "processor": ("machine", "cpu", "model"),
    "bf16 time / fp32 time": ("bf16_slowdown",),
    "cores": ("machine", "cpu", "usable_cores"),
    "kernel": ("machine", "kernel"),
    "system": ("machine", "os"),
    "container": ("machine", "limits", "container"),
    "host": ("hostname",),
}
"""Single values of environment.json, in the order that tables have them."""


def at(environment: Environment, *path: str) -> Any:
    """The value under these keys, one inside the other; None where any is missing."""
    value: Any = environment
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def text(value: Any) -> str | None:
    """A value of environment.json on one line; None stays None."""
    if value is None:
        return None
    return plain(value if isinstance(value, str) else json.dumps(value))


def memory_of_node(environment: Environment) -> int | None:
    """Host memory of the machine, or what its control group leaves of it."""
    there = (at(environment, "machine", "memory_bytes"), at(environment, "machine", "limits", "cgroup_memory_bytes"))
    return min((nbytes for nbytes in there if isinstance(nbytes, int)), default=None)


def gpu_names(environment: Environment) -> str | None:
    """`8 x NVIDIA H200`; None where the run's machine had none."""
    gpus = at(environment, "gpus")
    names = Counter(str(at(gpu, "name")) for gpu in gpus) if isinstance(gpus, list) else Counter()
    return plain(", ".join(f"{count} x {name}" for name, count in sorted(names.items()))) or None


def gpu_links(environment: Environment) -> str | None:
    """`28 pairs: 18 NVLinks through nvswitch, PCIe NODE`."""
    pairs = at(environment, "topology")
    kinds = Counter(_link(pair) for pair in (pairs if isinstance(pairs, list) else ()) if isinstance(pair, Mapping))
    return plain("; ".join(f"{count} pairs: {kind}" for kind, count in kinds.most_common())) or None


def _link(pair: Environment) -> str:
    nvlinks, through, pcie = pair.get("nvlinks"), pair.get("through"), pair.get("pcie")
    parts = [f"{nvlinks} NVLinks" + (f" through {through}" if through else "")] if nvlinks else []
    return ", ".join([*parts, *([f"PCIe {pcie}"] if pcie else [])]) or "not known"


def versions(environment: Environment) -> Iterator[tuple[str, str | None]]:
    """The versions of packages, by name."""
    releases = at(environment, "versions")
    for name, version in releases.items() if isinstance(releases, Mapping) else ():
        yield plain(str(name)), text(version)


def commit(repository: Any) -> str | None:
    """`0123456789ab`, with `+ changes` where tracked files differed from it."""
    if not isinstance(repository, Mapping) or not repository.get("commit"):
        return None
    return plain(str(repository["commit"])[:_SHORT_COMMIT]) + (" + changes" if repository.get("dirty") else "")
