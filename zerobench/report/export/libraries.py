"""Imports a library that only one format needs, or says in one line how to get it."""

import importlib
from typing import Any

from zerobench.common.errors import UserError

_PAGE_NEEDS = {"altair": "altair", "vl_convert": "vl-convert-python", "jinja2": "jinja2"}
"""Modules that a page alone imports, and the package that brings each."""


def require_page() -> None:
    """All that `--html` needs. Raises UserError: some of it is not installed."""
    for module, package in _PAGE_NEEDS.items():
        require(module, package, "--html", extra="report")


def require(module: str, package: str, option: str, extra: str | None = None) -> Any:
    """The module `module`, which `pip install package` brings and the command's `option` asks for.

    `extra` is the extra of zerobench that brings it with all else that the option needs.

    Raises UserError: it is not installed, or does not import.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
        reason = "is not installed" if is_missing else f"does not import ({error})"
        wanted = package if extra is None else f"'zerobench[{extra}]'"
        raise UserError(f"{option}: {package} {reason}; install it with: python -m pip install {wanted}") from None
