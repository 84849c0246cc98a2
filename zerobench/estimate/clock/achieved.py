"""What is achieved of a node's links: copies to the host, host memory, drives, and the network."""

from __future__ import annotations

from zerobench.config.hardware.links import Links
from zerobench.estimate.clock.rates import Rates

PAGED_SHARES = {True: 0.14, False: 0.235}
"""Of page-locked copies' rate, to the device and to the host, by memory that is not: 256 MiB went to two H100 at 8.4 of
54.8 and 7.1 of 54.5 GB/s, and came at 13.2 of 55.0 and 12.5 of 54.9 (benchmarks/gpu_campaign/h100/kernel_rates.csv,
h100_second)."""
MAPPED_BYTE_S = 1 / 6e9
"""In which the kernel makes a byte of new memory ready: what two updates on one host took longer than their bytes, 5.3
and 7.5 GB/s (benchmarks/gpu_campaign/h200_second/trials.csv)."""
_HOST_SHARE = 0.15
"""Of the host memory's bandwidth, by an update there, CPUAdam and what goes before and after it, as two steps of
zenflow have it (benchmarks/timing/other_programs.csv). Three of another program take twice as long."""
_HOST_LINK_SHARE = 0.8
"""Of PCIe, by copies of page-locked memory (NVIDIA's bandwidthTest gives 0.8 to 0.9 of the datasheet)."""
_NVME_SHARE = 0.8


def achieved(links: Links, rates: Rates) -> Links:
    """The links at the rates that are achieved of them."""
    shares = {
        "link_gb_per_s": rates.link_share,
        "network_gb_per_s": rates.network_share,
        "host_link_gb_per_s": _HOST_LINK_SHARE,
        "host_memory_gb_per_s": _HOST_SHARE,
        "nvme_gb_per_s": _NVME_SHARE,
    }
    known = {name: getattr(links, name) * share for name, share in shares.items() if getattr(links, name) is not None}
    return links.model_copy(update=known)
