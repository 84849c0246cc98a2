"""How fast bytes leave a GPU, a node and a drive at most: the rates that a step's transfers are divided by.

The GPU's catalogue entry knows most of them; host memory and drives are the node's and are given, or stay None. A rate
that is not known makes no bound, rather than a guessed one.
"""

from __future__ import annotations

from zerobench.config.hardware.hardware import Gpu, Rate
from zerobench.config.trial.base import Spec


class Links(Spec):
    """Peak rates in 10^9 bytes a second; None where nobody knows."""

    link_gb_per_s: Rate | None = None
    """From a GPU to the other GPUs of its node, one direction."""
    link_reduces: bool = False
    """Whether the switch between the GPUs of a node adds up what crosses it (NVLink SHARP)."""
    network_gb_per_s: Rate | None = None
    """From a node to the others, for each of its GPUs, one direction."""
    host_link_gb_per_s: Rate | None = None
    """Between a GPU and the host's memory, one direction."""
    host_memory_gb_per_s: Rate | None = None
    """Memory of one host, reads and writes together, shared by its GPUs."""
    nvme_gb_per_s: Rate | None = None
    """The NVMe drives of one node together, in each direction, shared by its GPUs."""

    def slowed(self, *, copies: float, host_update: float) -> Links:
        """The same where copies to and from the host, and updates in its memory, take so many times as long."""
        times = {"host_link_gb_per_s": copies, "host_memory_gb_per_s": host_update}
        known = {name: rate / slower for name, slower in times.items() if (rate := getattr(self, name)) is not None}
        return self.model_copy(update=known)


def links_of(gpu: Gpu, *, host_memory_gb_per_s: float | None = None, nvme_gb_per_s: float | None = None) -> Links:
    """The links of a node of `gpu` as catalogued, and of the node what is given.

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
    """Datasheets add up both directions of a link; a byte takes one."""
    return None if both_directions is None else both_directions / 2
