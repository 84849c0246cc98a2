"""Slurm's programs as small shell scripts, for what is about our calls and not about Slurm."""

from dataclasses import dataclass
from pathlib import Path

CONFIG = """\
Configuration data as of 2026-01-01T12:00:00
ClusterName             = zb
MaxArraySize            = 1001
MaxJobCount             = 10000
"""
PARTITIONS = "main*|1-00:00:00\nshort|30:00\ncpu|infinite\n"


@dataclass(frozen=True)
class Standins:
    """A folder of programs that come first in PATH."""

    folder: Path

    def answer(self, program: str, body: str) -> None:
        """Let `program` do what the shell commands `body` say; every call is written down first."""
        path = self.folder / program
        path.write_text(f"#!/bin/sh\necho \"{program} $*\" >> '{self.folder}/calls'\n{body}\n", encoding="utf-8")
        path.chmod(0o755)

    def calls(self, program: str) -> list[str]:
        """The arguments of each call of `program`."""
        path = self.folder / "calls"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [line.removeprefix(f"{program} ") for line in lines if line.split()[0] == program]

    def take_jobs(self, first: int = 101, refuse: str | None = None) -> None:
        """Let sbatch number jobs from `first` on, and refuse the script of the name `refuse`."""
        (self.folder / "next").write_text(f"{first}\n", encoding="utf-8")
        no = f"case $2 in */{refuse}.sbatch) echo 'sbatch: error: no such account' >&2; exit 1;; esac" if refuse else ""
        number = f"n=$(cat '{self.folder}/next'); echo $((n + 1)) > '{self.folder}/next'; echo \"$n;zb\""
        self.answer("sbatch", f"{no}\nenv > '{self.folder}/environment'\n{number}")


def install(folder: Path) -> Standins:
    """Programs of a cluster without accounting, in `folder`."""
    folder.mkdir()
    standins = Standins(folder)
    (folder / "config").write_text(CONFIG, encoding="utf-8")
    (folder / "partitions").write_text(PARTITIONS, encoding="utf-8")
    standins.answer("scontrol", f"cat '{folder}/config'")
    standins.answer("sinfo", f"cat '{folder}/partitions'")
    standins.answer("sacctmgr", "exit 1")
    standins.answer("squeue", "echo '{\"jobs\": []}'")
    standins.take_jobs()
    return standins
