"""The machine that a plan is made for: given, not detected, since the user need not have it.

GB are 10^9 bytes, as links and drives are sold; sizes are per node. Not given is None, never 0.
"""

import re
from dataclasses import dataclass

from zerobench.common.errors import UserError
from zerobench.common.units import parse_bytes
from zerobench.config.derived.machine import MAX_RANKS, Accelerator, Machine
from zerobench.config.hardware.hardware import CATALOGUE_VARIABLE, Gpu, known_gpu
from zerobench.config.hardware.links import Links, links_of
from zerobench.config.hardware.usual_node import GPUS_PER_NODE, HOST_BANDWIDTH
from zerobench.config.trial.plain import format_value, one_line, parse_number

_TOKENS = re.compile(r"(.*?\S)\s*([KMBT]?)", re.IGNORECASE)
_TIMES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_MOST_TOKENS = 1e18


@dataclass(frozen=True)
class Cluster:
    """Identical nodes."""

    gpu: Gpu
    num_nodes: int = 1
    gpus_per_node: int = 1
    host_memory_bytes: int | None = None
    """Memory per node that training may use."""
    nvme_bytes_per_s: float | None = None
    """Combined rate of the NVMe drives of one node."""

    host_memory_bytes_per_s: float | None = None
    """Memory bandwidth of one node, reads and writes together."""

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node

    @property
    def device_memory_bytes(self) -> int:
        """Memory that CUDA can allocate on one GPU. Raises UserError if the catalogue does not have it."""
        if self.gpu.capacity_bytes is None:
            raise UserError(
                f"--gpu: memory size of {self.gpu.name} unknown; add it to your own catalogue ({CATALOGUE_VARIABLE})"
            )
        return self.gpu.capacity_bytes

    @property
    def links(self) -> Links:
        """Peak rates of the links of a GPU, a node and a drive."""
        nvme, host = (
            None if rate is None else rate / 1e9 for rate in (self.nvme_bytes_per_s, self.host_memory_bytes_per_s)
        )
        return links_of(self.gpu, nvme_gb_per_s=nvme, host_memory_gb_per_s=host)

    @property
    def machine(self) -> Machine:
        """The cluster as the rules see it: everything is installed, and too little memory is a result."""
        known = self.gpu.peak_tflops
        return Machine(
            accelerator=Accelerator.CUDA,
            num_nodes=self.num_nodes,
            num_gpus=self.gpus_per_node,
            gpu_names=(self.gpu.name,),
            device_memory_bytes=self.gpu.capacity_bytes,
            supports_bf16=not known or "bf16" in known,
            has_flash_attention=True,
            has_liger=True,
        )


def read_cluster(
    *,
    gpu: str,
    gpus: str,
    gpus_per_node: str = str(GPUS_PER_NODE),
    host_memory: str | None = None,
    host_bandwidth: str | None = HOST_BANDWIDTH,
    nvme: str | None = None,
) -> Cluster:
    """Read a cluster from the command line's options; fewer GPUs than a node has make one smaller node.

    Raises UserError, one line that begins with the option: an unknown GPU, no positive number, ranks that do not fill
    whole nodes, an invalid size or rate.
    """
    catalogued = known_gpu(gpu, "--gpu")
    ranks, per_node = read_count("--gpus", gpus), read_count("--gpus-per-node", gpus_per_node)
    per_node = min(ranks, per_node)
    if ranks % per_node:
        raise UserError(f"--gpus: {ranks} GPUs are not a multiple of {per_node} per node; see --gpus-per-node")
    memory = None if host_memory is None else _read_size("--host-memory", host_memory)
    if memory == 0:
        raise UserError(f"--host-memory: {host_memory!r}: must be above 0; for example 1TB")
    rate = None if nvme is None else read_rate("--nvme", nvme)
    bandwidth = None if host_bandwidth is None else read_rate("--host-bandwidth", host_bandwidth)
    cluster = Cluster(catalogued, ranks // per_node, per_node, memory, rate, bandwidth)
    _ = cluster.device_memory_bytes  # what is not known of the GPU is said before anything runs
    return cluster


def read_count(option: str, text: str, most: int = MAX_RANKS) -> int:
    """Read an integer from 1 to `most`. Raises UserError, which begins with `option`."""
    number = parse_number(text)
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
        raise UserError(one_line(f"{option}: {format_value(text)} is not a whole number from 1 to {most}"))
    return number


def _read_size(option: str, text: str) -> int:
    """Read bytes with their unit. Raises UserError, which begins with `option`: a bare number is never meant as single
    bytes.
    """
    number = parse_number(text.strip())
    if isinstance(number, int | float) and number > 0:
        raise UserError(one_line(f"{option}: {format_value(text)} has no unit; for example 1TB or 512GiB"))
    return parse_bytes(text, option)


def read_rate(option: str, text: str) -> float:
    """Read bytes per second, written as `7GB/s`. Raises UserError, which begins with `option`."""
    size, slash, per = text.strip().rpartition("/")
    if not slash or per.strip() != "s":
        raise UserError(one_line(f"{option}: {format_value(text)} is not a rate; for example 7GB/s"))
    rate = _read_size(option, size)
    if rate == 0:
        raise UserError(f"{option}: {format_value(text)}: must be above 0; drop the option for no drive")
    return float(rate)


def read_tokens(option: str, text: str) -> float:
    """Read tokens, written as `300B`, `1.5T` or `3e11`. Raises UserError, which begins with `option`."""
    match = _TOKENS.fullmatch(text.strip())
    number = parse_number(match[1]) if match else None
    if match is None or isinstance(number, bool) or not isinstance(number, int | float):
        raise UserError(one_line(f"{option}: {format_value(text)} is not a number of tokens; for example 300B or 1.5T"))
    tokens = number * _TIMES[match[2].lower()]
    if not 1 <= tokens <= _MOST_TOKENS:
        raise UserError(
            one_line(f"{option}: {format_value(text)} is out of range; choices: 1 to {_MOST_TOKENS:g} tokens")
        )
    return float(tokens)
