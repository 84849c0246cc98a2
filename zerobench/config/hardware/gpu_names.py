"""Finds the GPU that a user names, or raises an error with the nearest names: for axes and options that take a GPU."""

import re
from collections.abc import Sequence

from zerobench.common.errors import UserError, choices_for, nearest
from zerobench.config.hardware.hardware import Gpu, find_gpu, load_catalogue
from zerobench.config.trial.plain import format_value, one_line

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
    return next((gpu for gpu in named if gpu.memory_bytes and _is_called(gpu.memory_bytes / 2**30, sizes[0])), None)


def _is_called(memory_gib: float, size: int) -> bool:
    return abs(size - memory_gib) < _NOMINAL * memory_gib


def _close(name: str, catalogue: Sequence[Gpu]) -> list[str]:
    """Short names of the GPUs that `name` may mean: those with all of its words in a name, then those spelt alike."""
    spelt = {other.lower(): gpu.name for gpu in catalogue for other in (gpu.name, *gpu.names)}
    words = set(_words(name))
    with_all = [short for other, short in spelt.items() if words and words <= set(_words(other))]
    alike = [spelt[other] for other in nearest(name.lower(), spelt)]
    return list(dict.fromkeys([*with_all, *alike]))[:_MOST_HINTS]


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())
