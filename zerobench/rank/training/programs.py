"""The programs of this environment, found by torch also where it was not activated."""

import os
import sys
from pathlib import Path


def find_own_programs() -> None:
    """Let torch find this environment's ninja.

    Kernels that one ninja has compiled another takes for stale, so that runs from an activated shell and others would
    compile them again and again.
    """
    ours, path = str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)
    if ours not in path.split(os.pathsep):
        os.environ["PATH"] = f"{ours}{os.pathsep}{path}"
