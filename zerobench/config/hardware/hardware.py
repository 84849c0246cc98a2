"""What GPUs can do at most, by the name the driver gives them; where every figure comes from is beside it.

The catalogue ships as `hardware.yaml`. Users add GPUs, or correct ours, by a file of the same form: its entries
come first. A device that nobody has catalogued has no peak, and its MFU is not available rather than wrong; the
same holds for a MIG slice, which is part of a GPU under a name of its own.
"""

import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from zerobench.common.errors import UserError
from zerobench.common.units import parse_bytes
from zerobench.config.trial.base import Spec, user_error

try:
    from yaml import CSafeLoader as SafeLoader  # ten times as fast, where PyYAML was built with libyaml
except ImportError:
    from yaml import SafeLoader  # type: ignore[assignment]

CATALOGUE_VARIABLE = "ZEROBENCH_HARDWARE"
"""Environment variable that names the user's own catalogue."""

_SHIPPED = Path(__file__).with_name("hardware.yaml")

Dtype = Literal["fp32", "tf32", "bf16", "fp16", "fp8"]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _read_bytes(value: Any) -> Any:
    """Bytes as people write them; the field's name is in pydantic's error."""
    try:
        return parse_bytes(value)
    except UserError as error:
        raise ValueError(str(error).removeprefix("bytes: ")) from None


Bytes = Annotated[int, BeforeValidator(_read_bytes)]


class Gpu(Spec):
    """One model of GPU: what its maker promises, dense (without sparsity)."""

    name: str = Field(min_length=1)
    """The short name that people use, for example `H100 SXM`."""
    names: tuple[str, ...] = ()
    """As NVML and CUDA report it; vendor words, case and dashes do not matter."""
    memory_bytes: Annotated[Bytes, Field(gt=0)] | None = None
    """Total as NVML reports it; a file may write `143771 MiB`."""
    usable_memory_bytes: Annotated[Bytes, Field(gt=0)] | None = None
    """What the driver leaves to programs: the total of cudaMemGetInfo. None: by rule, see `capacity_bytes`."""
    sm_count: Annotated[int, Field(gt=0)] | None = None
    """Multiprocessors."""
    compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d+$")] | None = None
    """As CUDA calls it, for example `9.0`."""
    l2_bytes: Annotated[Bytes, Field(gt=0)] | None = None
    """Cache of the second level."""
    peak_tflops: dict[Dtype, Rate] = Field(default_factory=dict)
    """10^12 FLOP/s by data type, 16 and 8 bits with fp32 accumulation, fp32 without tensor cores."""
    memory_gb_per_s: Rate | None = None
    """Bandwidth of the device memory, 10^9 bytes a second."""
    link: str | None = None
    """The fastest link to another GPU."""
    link_gb_per_s: Rate | None = None
    """Its bandwidth, both directions together, 10^9 bytes a second."""
    link_reduces: bool = False
    """Whether the switch between these links adds up what crosses it (NVLink SHARP), so that an all-reduce sends each
    byte once."""
    host_link: str | None = None
    """The link to the CPU and its memory."""
    host_link_gb_per_s: Rate | None = None
    """Its bandwidth, both directions together, 10^9 bytes a second."""
    network_gb_per_s: Rate | None = None
    """Bandwidth of the network card that a usual node has for each GPU, one direction, 10^9 bytes a second."""
    power_watts: Rate | None = None
    """What the board draws at most."""
    source: str = Field(min_length=1)
    """Where the peaks, the bandwidths and the power come from."""
    device_source: str | None = None
    """Where multiprocessors and the second level's cache come from."""
    memory_source: str | None = None
    """Where the memory size comes from."""
    usable_memory_source: str | None = None
    """Where the usable memory comes from."""
    host_link_source: str | None = None
    """Where the host link comes from, if not from `source`."""
    network_source: str | None = None
    """Where the network comes from."""

    @model_validator(mode="after")
    def _usable_is_a_part(self) -> Self:
        if self.memory_bytes and self.usable_memory_bytes and self.usable_memory_bytes > self.memory_bytes:
            raise ValueError(
                f"usable_memory_bytes: {self.usable_memory_bytes} exceeds memory_bytes, {self.memory_bytes}"
            )
        return self

    @property
    def capacity_bytes(self) -> int | None:
        """Memory that CUDA hands out to programs: whatever must fit is compared with it.

        The catalogue's `usable_memory_bytes`, else the share of `memory_bytes` that the driver leaves of a similar
        GPU (`capacity_rule`). None if neither size is known.
        """
        if self.usable_memory_bytes or self.memory_bytes is None:
            return self.usable_memory_bytes
        peer = self._peer
        if peer is None:
            return self.memory_bytes
        return self.memory_bytes * (peer.usable_memory_bytes or 0) // (peer.memory_bytes or 1)

    def capacity_of(self, total_bytes: int) -> int:
        """Memory that CUDA hands out of a device, or a part of one, whose total NVML reports as `total_bytes`."""
        if not self.memory_bytes or not self.capacity_bytes:
            return total_bytes
        return total_bytes * self.capacity_bytes // self.memory_bytes

    @property
    def capacity_rule(self) -> str | None:
        """How `capacity_bytes` is derived, in words; None if the catalogue gives it."""
        if self.usable_memory_bytes or self.memory_bytes is None:
            return None
        peer = self._peer
        return (
            "taken to be NVML's total"
            if peer is None
            else f"taken to be the same share of NVML's total as on {peer.name}"
        )

    @property
    def _peer(self) -> "Gpu | None":
        """The shipped GPU nearest in size whose usable memory is known, of the same compute capability if there is one.

        None without a compute capability: drivers of other makers keep nothing.
        """
        if self.memory_bytes is None or self.compute_capability is None:
            return None
        known = [gpu for gpu in _shipped() if gpu.usable_memory_bytes and gpu.memory_bytes and gpu.compute_capability]
        alike = [gpu for gpu in known if gpu.compute_capability == self.compute_capability]
        size = self.memory_bytes
        return min(alike or known, key=lambda gpu: abs((gpu.memory_bytes or 0) - size), default=None)


class Catalogue(Spec):
    """A file of GPUs."""

    gpus: tuple[Gpu, ...]


def load_catalogue(users_file: Path | None = None) -> tuple[Gpu, ...]:
    """All GPUs known: those of `users_file` (by default the one ZEROBENCH_HARDWARE names), then the shipped ones.

    Raises UserError for a file that is not there or not of the form of `hardware.yaml`.
    """
    named = os.environ.get(CATALOGUE_VARIABLE)
    if users_file is None and named:
        users_file = Path(named).expanduser()
    return (_read(users_file) if users_file else ()) + _shipped()


@cache
def _shipped() -> tuple[Gpu, ...]:
    return _read(_SHIPPED)


def _read(file: Path) -> tuple[Gpu, ...]:
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=SafeLoader)
    except OSError as error:
        raise UserError(f"hardware: {file}: {error.strerror or error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"hardware: {file}: invalid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, Mapping) or set(content) != {"gpus"}:
        raise UserError(f"hardware: {file}: a catalogue is a mapping with the key gpus, a list of GPUs")
    try:
        return Catalogue.model_validate(content).gpus
    except ValidationError as error:
        raise user_error(error, Gpu, str(file)) from None


def find_gpu(name: str, catalogue: Iterable[Gpu] | None = None) -> Gpu | None:
    """The GPU that NVML, CUDA or a person calls `name`, or None; `catalogue` defaults to `load_catalogue()`.

    The whole name must match: an A10 is no A100, and `... MIG 1g.10gb` is no whole GPU.
    """
    wanted = _key(name)
    known = load_catalogue() if catalogue is None else catalogue
    return next((gpu for gpu in known if wanted in map(_key, (gpu.name, *gpu.names))), None)


def device_capacity_bytes(name: str, total_bytes: int) -> int:
    """Memory that CUDA hands out of the device `name`, whose total NVML reports as `total_bytes`.

    The total itself for a device that the catalogue does not know.
    """
    gpu = find_gpu(name)
    return total_bytes if gpu is None else gpu.capacity_of(total_bytes)


@cache
def _key(name: str) -> str:
    """`name` without vendor words, case, dashes and spaces."""
    words = re.split(r"[\s_-]+", name.lower())
    return " ".join(word for word in words if word not in {"", "nvidia", "tesla", "geforce", "rtx", "amd", "instinct"})


def peak_flops(name: str, precision: str, catalogue: Iterable[Gpu] | None = None) -> tuple[float, str] | None:
    """Peak dense FLOP/s of the GPU called `name` in `precision` (fp32, tf32, bf16, fp16, fp8) and its source.

    None where the GPU is not catalogued or has no peak for that data type.
    """
    gpu = find_gpu(name, catalogue)
    tflops = None if gpu is None else {str(dtype): rate for dtype, rate in gpu.peak_tflops.items()}.get(precision)
    return None if gpu is None or tflops is None else (tflops * 1e12, gpu.source)
