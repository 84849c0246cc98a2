"""What setup downloads for the emulator, as pip's requirements: exact versions, each with the hashes of its files.

One file for each release of torch and for each release of CUDA, under requirements/emulator. A release without a file
is downloaded only on request, and unchecked.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from zerobench.common.errors import UserError
from zerobench.common.resources import shipped

INDEX_CUDA = "13.0"
"""CUDA of the builds of torch on the package index, of all releases with a file."""
UNVERIFIED = "--unverified"
"""The option of `zerobench setup` that downloads what no hash is listed for."""


def overlay_requirements(release: str) -> Path | None:
    """File with torch `release` and its Triton; None where no hashes are listed for that release."""
    return _existing(f"torch-{release}")


def header_requirements(cuda: str) -> Path | None:
    """File with the headers of CUDA `cuda` (`13.0`); None where no hashes are listed for that release."""
    return _existing(f"cuda-{cuda}")


def verified(file: Path | None, product: str) -> Path:
    """`file`. Raises UserError: no hashes are listed for `product`."""
    if file is not None:
        return file
    kind = product.partition(" ")[0]
    known = [f"{kind} {path.stem.partition('-')[2]}" for path in sorted(_folder().glob(f"{kind.lower()}-*.txt"))]
    raise UserError(
        f"setup emulator: {product}: no hashes are listed, so its download cannot be checked; choices: "
        f"{', '.join(known)}, or {UNVERIFIED} to download it unchecked"
    )


def requirements_digest(release: str, cuda: str | None) -> str:
    """Eight hex digits over the files for a torch `release`, laid over the user's or, with `cuda`, the user's own;
    `unverified` where one of them is not there.
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
