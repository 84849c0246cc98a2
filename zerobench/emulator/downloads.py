"""Downloads of the emulator's setup, as pip requirements: exact versions with hashes of their files.

One file per release of torch and of CUDA, under requirements/emulator. A release without a file is only downloaded on
request, and unchecked.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from zerobench.common.errors import UserError
from zerobench.common.resources import shipped

INDEX_CUDA = "13.0"
"""CUDA release of torch's builds on the package index, for all releases with a file."""
UNVERIFIED = "--unverified"
"""Option of `zerobench setup` to download files without a listed hash."""


def overlay_requirements(release: str) -> Path | None:
    """File with torch `release` and its Triton; None if that release has no hashes."""
    return _existing(f"torch-{release}")


def listed_torches() -> list[str]:
    """Return the releases of torch that hashes are listed for."""
    return sorted(path.stem.removeprefix("torch-") for path in _folder().glob("torch-*.txt"))


def header_requirements(cuda: str) -> Path | None:
    """File with the headers of CUDA `cuda` (`13.0`); None if that release has no hashes."""
    return _existing(f"cuda-{cuda}")


def verified(file: Path | None, product: str) -> Path:
    """Return `file`. Raises UserError if there are no hashes for `product`."""
    if file is not None:
        return file
    kind = product.partition(" ")[0]
    known = [f"{kind} {path.stem.partition('-')[2]}" for path in sorted(_folder().glob(f"{kind.lower()}-*.txt"))]
    raise UserError(
        f"setup emulator: {product}: no hashes are listed, so its download cannot be checked; choices: "
        f"{', '.join(known)}, or {UNVERIFIED} to download it unchecked"
    )


def requirements_digest(release: str, cuda: str | None) -> str:
    """Eight hex digits over the files for a torch `release`: as an overlay or, with `cuda`, the user's own build.

    `unverified` if one of them does not exist.
    """
    files = [header_requirements(cuda or INDEX_CUDA)]
    if cuda is None:
        files.append(overlay_requirements(release))
    digest = hashlib.sha256()
    for file in files:
        if file is None:
            return "unverified"
        digest.update(file.read_bytes())
    return digest.hexdigest()[:8]


def _folder() -> Path:
    return shipped("requirements") / "emulator"


def _existing(stem: str) -> Path | None:
    path = _folder() / f"{stem}.txt"
    return path if path.is_file() else None
