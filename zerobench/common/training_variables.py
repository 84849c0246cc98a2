"""Environment of a process under the training Python: a way to zerobench, and its own programs first."""

from __future__ import annotations

import os
from collections.abc import Mapping

from zerobench.common.environments import environments_folder, linked_package
from zerobench.common.errors import UserError
from zerobench.common.training_python import VARIABLE, training_python

_CODE = ".code"


def training_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what the environment of a process under the training Python has more than `environ`.

    Nothing is installed there: PYTHONPATH leads to zerobench alone, since a whole `site-packages` would lend packages
    of another release, or of another Python. Its programs come first on PATH, as in a shell that activated it.

    Raises UserError: the folder that leads to zerobench cannot be made.
    """
    python = training_python()
    added = {VARIABLE: ""} if environ.get(VARIABLE) else {}  # within, the training Python is the process's own
    if python.is_own:
        return added
    folder = environments_folder() / _CODE
    try:
        code = linked_package(folder)
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"{folder}: {why}; set ZEROBENCH_ENVIRONMENTS to a folder that can be written") from None
    added["PYTHONPATH"] = prepend_path(str(code), environ.get("PYTHONPATH"))
    added["PATH"] = prepend_path(str(python.bin), environ.get("PATH", os.defpath))
    if python.virtual_env is not None:
        added["VIRTUAL_ENV"] = str(python.virtual_env)
    return added


def prepend_path(first: str, rest: str | None) -> str:
    """Put `first` before the other folders of a search path such as PATH."""
    return f"{first}{os.pathsep}{rest}" if rest else first
