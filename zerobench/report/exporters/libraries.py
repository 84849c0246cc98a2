"""Imports a library that only one export needs, or says in one line how to get it."""

from __future__ import annotations

import importlib
from typing import Any

from zerobench.errors import UserError


def require(module: str, package: str, option: str) -> Any:
    """The module `module`, which `pip install package` brings and the command's `option` asks for.

    Raises UserError: it is not installed, or does not import.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
        reason = "is not installed" if is_missing else f"does not import ({error})"
        raise UserError(f"{option}: {package} {reason}; install it with: python -m pip install {package}") from None
