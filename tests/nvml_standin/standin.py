"""Builds the stand-in driver and gives child processes the environment in which pynvml loads it.

LD_LIBRARY_PATH is read when a process starts, so whatever asks the stand-in runs in a child process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CHECKOUT = HERE.parent.parent


def uuid(index: int) -> str:
    """The UUID that the stand-in gives GPU `index` unless a scenario says another."""
    return f"GPU-fa4e0000-0000-4000-8000-{index:012x}"


@dataclass(frozen=True)
class Standin:
    """The libraries as built, and a folder for scenarios."""

    folder: Path

    @classmethod
    def build(cls, folder: Path) -> Standin:
        """Compile the driver of today, one from before memory v2, and one that is no library at all."""
        for name, extra in (("new", []), ("old", [f"-Wl,--version-script={HERE / 'old.map'}"])):
            (folder / name).mkdir(parents=True)
            library = folder / name / "libnvidia-ml.so.1"
            soname = "-Wl,-soname,libnvidia-ml.so.1"
            command = ["gcc", "-O1", "-fPIC", "-shared", "-pthread", soname, *extra, "-o", str(library)]
            subprocess.run([*command, str(HERE / "fakenvml.c")], check=True)
        (folder / "broken").mkdir()
        (folder / "broken" / "libnvidia-ml.so.1").write_bytes(b"")
        return cls(folder)

    def environment(self, scenario: str = "", driver: str = "new", control: Path | None = None) -> dict[str, str]:
        """What a child process needs to find a machine as `scenario` says (fakenvml.c's header has the directives).

        Its time begins now. `driver` is `new`, `old` or `broken`; `control` is the file that the driver counts in.
        """
        path = self.folder / f"{time.monotonic_ns()}.txt"
        path.write_text(f"{textwrap.dedent(scenario)}\nt0 {time.monotonic_ns()}\n")
        added = {"LD_LIBRARY_PATH": str(self.folder / driver), "FAKE_NVML_SCENARIO": str(path)}
        if control is not None:
            added["FAKE_NVML_CTL"] = str(control)
        paths = filter(None, (os.environ.get("PYTHONPATH"), str(CHECKOUT)))
        return os.environ | added | {"PYTHONPATH": os.pathsep.join(paths)}

    def run(self, code: str, scenario: str = "", driver: str = "new", *arguments: str, timeout_s: float = 60) -> Any:
        """Run `code` in a child process on that machine; what it printed last, parsed as JSON."""
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), *arguments],
            env=self.environment(scenario, driver),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])
