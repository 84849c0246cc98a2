"""Files that ship with the package: sweeps, ds_configs, Slurm templates; in a checkout and in a wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def shipped(folder: str) -> Path:
    """Folder of shipped files named `folder`: `sweeps`, `requirements`, `ds_configs` or `slurm`.

    The first two are in the package, the others at the top of a checkout and under `_data` in a wheel. (The package
    also has a folder `slurm`, which is code.)
    """
    places = [_PACKAGE] if folder in {"sweeps", "requirements"} else [_PACKAGE / "_data", _PACKAGE.parent]
    for candidate in (place / folder for place in places):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"zerobench was installed without its folder {folder!r}")
