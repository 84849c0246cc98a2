"""The names under which this package is installed, and the other project that shares its import name."""

import importlib.metadata
import re

DISTRIBUTION = "deepspeed-zerobench"
"""Name of this package for pip. It is imported, and called, as `zerobench`."""

_NAMESAKE = "zerobench"
"""A benchmarking library on the public index, which lays its files into the same folder."""
_ITS_FILE = "zerobench/_benchmark.py"


def namesake() -> str | None:
    """Return the version of the other package if it is installed here, in the folder that this one is imported from."""
    try:
        other = importlib.metadata.distribution(_NAMESAKE)
    except importlib.metadata.PackageNotFoundError:
        return None
    return other.version if _ITS_FILE in map(str, other.files or ()) else None


def release_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version without its local build: (2, 13, 0) of `2.13.0+cu130`."""
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0]))
