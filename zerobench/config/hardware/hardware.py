"""Peak figures of GPUs, by the name that the driver reports; every figure has its source.

The catalogue ships as `hardware.yaml`. Users add or correct GPUs with a file of the same form: its entries come first.
A device outside the catalogue has no peak, and its MFU is not available rather than wrong; the same applies to a MIG
slice, which is part of a GPU under a name of its own.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from zerobench.common.errors import UserError, choices_for, nearest
from zerobench.common.units import parse_bytes
from zerobench.config.trial.base import Spec, user_error
from zerobench.config.trial.plain import format_value, one_line

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
    """Read bytes with a unit; pydantic's error has the field's name."""
    try:
        return parse_bytes(value)
    except UserError as error:
        raise ValueError(str(error).removeprefix("bytes: ")) from None


Bytes = Annotated[int, BeforeValidator(_read_bytes)]


class Gpu(Spec):
    """One model of GPU, with its maker's dense figures (without sparsity)."""

    name: str = Field(min_length=1)
    """Short name in common use, for example `H100 SXM`."""
    names: tuple[str, ...] = ()
    """As NVML and CUDA report it; vendor words, case and dashes do not matter."""
    memory_bytes: Annotated[Bytes, Field(gt=0)] | None = None
    """Total as NVML reports it; a file may write `143771 MiB`."""
    usable_memory_bytes: Annotated[Bytes, Field(gt=0)] | None = None
    """Memory that the driver leaves to programs: the total of cudaMemGetInfo. None: by rule, see `capacity_bytes`."""
    sm_count: Annotated[int, Field(gt=0)] | None = None
    """Streaming multiprocessors."""
    compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d+$")] | None = None
    """CUDA's compute capability, for example `9.0`."""
    l2_bytes: Annotated[Bytes, Field(gt=0)] | None = None
    """Size of the L2 cache."""
    peak_tflops: dict[Dtype, Rate] = Field(default_factory=dict)
    """10^12 FLOP/s by data type, 16 and 8 bits with fp32 accumulation, fp32 without tensor cores."""
    memory_gb_per_s: Rate | None = None
    """Bandwidth of the device memory, 10^9 bytes a second."""
    link: str | None = None
    """Fastest link to another GPU."""
    link_gb_per_s: Rate | None = None
    """Its bandwidth, both directions together, 10^9 bytes a second."""
    link_reduces: bool = False
    """Whether the switch of these links reduces data in transit (NVLink SHARP), so that an all-reduce sends each byte
    once."""
    host_link: str | None = None
    """Link to the CPU and its memory."""
    host_link_gb_per_s: Rate | None = None
    """Its bandwidth, both directions together, 10^9 bytes a second."""
    network_gb_per_s: Rate | None = None
    """Bandwidth of the network card per GPU in a usual node, one direction, 10^9 bytes a second."""
    power_watts: Rate | None = None
    """Rated power of the board."""
    source: str = Field(min_length=1)
    """Source of the peaks, the bandwidths and the power."""
    device_source: str | None = None
    """Source of the multiprocessors and the L2 cache."""
    memory_source: str | None = None
    """Source of the memory size."""
    usable_memory_source: str | None = None
    """Source of the usable memory."""
    host_link_source: str | None = None
    """Source of the host link, if not `source`."""
    network_source: str | None = None
    """Source of the network bandwidth."""

    @model_validator(mode="after")
    def _usable_is_a_part(self) -> Self:
        if self.memory_bytes and self.usable_memory_bytes and self.usable_memory_bytes > self.memory_bytes:
            raise ValueError(
                f"usable_memory_bytes: {self.usable_memory_bytes} exceeds memory_bytes, {self.memory_bytes}"
            )
        return self

    @property
    def capacity_bytes(self) -> int | None:
        """Memory that CUDA can allocate, the limit that trials are compared with.

        The catalogue's `usable_memory_bytes`, else the share of `memory_bytes` that the driver leaves on a similar GPU
        (`capacity_rule`). None if neither size is known.
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
        """Derivation of `capacity_bytes` in words; None if the catalogue has it."""
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
        """Shipped GPU nearest in size with known usable memory, of the same compute capability if there is one.

        None without a compute capability: other makers' drivers reserve nothing.
        """
        if self.memory_bytes is None or self.compute_capability is None:
            return None
        known = [gpu for gpu in _shipped() if gpu.usable_memory_bytes and gpu.memory_bytes and gpu.compute_capability]
        alike = [gpu for gpu in known if gpu.compute_capability == self.compute_capability]
        size = self.memory_bytes
        return min(alike or known, key=lambda gpu: abs((gpu.memory_bytes or 0) - size), default=None)


class Catalogue(Spec):
    gpus: tuple[Gpu, ...]


def load_catalogue(users_file: Path | None = None) -> tuple[Gpu, ...]:
    """Load all GPUs: those of `users_file` (default: the one ZEROBENCH_HARDWARE names), then the shipped ones.

    Raises UserError for a file that does not exist or does not have the form of `hardware.yaml`.
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
    """Find the GPU that NVML, CUDA or a user calls `name`, or None; `catalogue` defaults to `load_catalogue()`.

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
    """Drop vendor words, case, dashes and spaces from `name`."""
    words = re.split(r"[\s_-]+", name.lower())
    return " ".join(word for word in words if word not in {"", "nvidia", "tesla", "geforce", "rtx", "amd", "instinct"})


def peak_flops(name: str, precision: str, catalogue: Iterable[Gpu] | None = None) -> tuple[float, str] | None:
    """Peak dense FLOP/s of the GPU called `name` in `precision` (fp32, tf32, bf16, fp16, fp8), and its source.

    None if the GPU is not catalogued or has no peak for that data type.
    """
    gpu = find_gpu(name, catalogue)
    tflops = None if gpu is None else {str(dtype): rate for dtype, rate in gpu.peak_tflops.items()}.get(precision)
    return None if gpu is None or tflops is None else (tflops * 1e12, gpu.source)


_MOST_HINTS = 3
_SIZE = re.compile(r"(\d{1,3})gb?")
_NOMINAL = 0.07
"""Relative difference between the memory in a GPU's name and NVML's."""


def known_gpu(name: object, field: str = "gpu", also: Sequence[str] = ()) -> Gpu:
    """Find the catalogued GPU called `name` (see hardware.find_gpu).

    Raises UserError, one line that begins with `field`, with the nearest names, or some of the choices, `also` first.
    """
    catalogue = load_catalogue()
    gpu = (find_gpu(name, catalogue) or _find_by_size(name, catalogue)) if isinstance(name, str) else None
    if gpu is not None:
        return gpu
    choices = list(dict.fromkeys(gpu.name for gpu in catalogue))
    close = _close(name, catalogue) if isinstance(name, str) else []
    hint = choices_for(name, [*also, *choices], "zerobench models --gpus", close)
    raise UserError(one_line(f"{field}: {format_value(name)} is not in the hardware catalogue; {hint}"))


def _find_by_size(name: str, catalogue: Sequence[Gpu]) -> Gpu | None:
    """`h100-80gb`, `v100 32gb`: first GPU with the other words in its name and this memory size."""
    words = _words(name)
    sizes = [int(match[1]) for word in words if (match := _SIZE.fullmatch(word))]
    rest = {word for word in words if not _SIZE.fullmatch(word)}
    if len(sizes) != 1 or not rest:
        return None
    named = (gpu for gpu in catalogue if any(rest <= set(_words(other)) for other in (gpu.name, *gpu.names)))
    sized = ((gpu, gpu.memory_bytes / 2**30) for gpu in named if gpu.memory_bytes)
    return next((gpu for gpu, gib in sized if abs(sizes[0] - gib) < _NOMINAL * gib), None)


def _close(name: str, catalogue: Sequence[Gpu]) -> list[str]:
    """Short names of the GPUs that `name` may mean: those with all of its words in a name, then those spelt alike."""
    spelt = {other.lower(): gpu.name for gpu in catalogue for other in (gpu.name, *gpu.names)}
    words = set(_words(name))
    with_all = [short for other, short in spelt.items() if words and words <= set(_words(other))]
    alike = [spelt[other] for other in nearest(name.lower(), spelt)]
    return list(dict.fromkeys([*with_all, *alike]))[:_MOST_HINTS]


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())
