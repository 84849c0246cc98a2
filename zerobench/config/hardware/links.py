"""Peak rates of the links of a GPU, a node and a drive, by which a step's transfers are divided.

Most come from the GPU's catalogue entry; host memory and drives belong to the node and are given, or stay None. An
unknown rate sets no bound, rather than a guessed one.
"""

from __future__ import annotations

from zerobench.config.hardware.hardware import Gpu, Rate
from zerobench.config.trial.base import Spec


class Links(Spec):
    """Peak rates in 10^9 bytes a second; None if unknown."""

    link_gb_per_s: Rate | None = None
    """From a GPU to the other GPUs of its node, one direction."""
    link_reduces: bool = False
    """Whether the switch between the GPUs of a node reduces data in transit (NVLink SHARP)."""
    network_gb_per_s: Rate | None = None
    """From a node to the others, per GPU, one direction."""
    host_link_gb_per_s: Rate | None = None
    """Between a GPU and host memory, one direction."""
    host_memory_gb_per_s: Rate | None = None
    """Memory of one host, reads and writes together, shared by its GPUs."""
    nvme_gb_per_s: Rate | None = None
    """All NVMe drives of one node, in each direction, shared by its GPUs."""

    def slowed(self, *, copies: float, host_update: float) -> Links:
        """Divide the rates of host copies and host updates by these factors."""
        times = {"host_link_gb_per_s": copies, "host_memory_gb_per_s": host_update}
        known = {name: rate / slower for name, slower in times.items() if (rate := getattr(self, name)) is not None}
        return self.model_copy(update=known)


def links_of(gpu: Gpu, *, host_memory_gb_per_s: float | None = None, nvme_gb_per_s: float | None = None) -> Links:
    """Links of a node with `gpu` as catalogued, and the given rates of the node.

    Raises pydantic's ValidationError for a rate that is not above zero.
    """
    return Links(
        link_gb_per_s=_one_way(gpu.link_gb_per_s),
        link_reduces=gpu.link_reduces,
        network_gb_per_s=gpu.network_gb_per_s,
        host_link_gb_per_s=_one_way(gpu.host_link_gb_per_s),
        host_memory_gb_per_s=host_memory_gb_per_s,
        nvme_gb_per_s=nvme_gb_per_s,
    )


def _one_way(both_directions: float | None) -> float | None:
    # Datasheets add up both directions of a link; a byte takes one
    return None if both_directions is None else both_directions / 2
