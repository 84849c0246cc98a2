"""Where everything of a run lies; the only file that knows the names, and how a file is put there whole."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

TRIAL_VARIABLE = "ZEROBENCH_TRIAL"
"""Environment variable that every process of a trial inherits; its value is the trial's folder. It is how a trial's
processes are told from all others, and how a tracker inside of a watched script finds where to write."""


@dataclass(frozen=True)
class TrialFolder:
    """The folder of one trial."""

    path: Path

    @property
    def spec(self) -> Path:
        """The trial as asked (TrialSpec)."""
        return self.path / "trial.json"

    @property
    def ds_config(self) -> Path:
        """The DeepSpeed config handed to the engine; absent for strategies without DeepSpeed."""
        return self.path / "ds_config.json"

    @property
    def command(self) -> Path:
        """The launcher's command line, one argument a line."""
        return self.path / "cmd.txt"

    @property
    def stdout(self) -> Path:
        """What the launcher and its ranks printed."""
        return self.path / "stdout.txt"

    @property
    def stderr(self) -> Path:
        """What the launcher and its ranks printed as errors."""
        return self.path / "stderr.txt"

    @property
    def record(self) -> Path:
        """How the trial ended (TrialRecord); there once it has."""
        return self.path / "record.json"

    def rank_record(self, rank: int) -> Path:
        """What rank `rank` measured (RankRecord)."""
        return self.path / f"rank_{rank}.json"

    def rank_records(self) -> list[Path]:
        """The rank records that are there, by rank."""
        return sorted(self.path.glob("rank_*.json"), key=lambda p: int(p.stem.removeprefix("rank_")))

    def progress(self, rank: int) -> Path:
        """Where rank `rank` is: pid, hostname, phase, step, memory (Progress); rewritten as it goes."""
        return self.path / f"progress_{rank}.json"

    def stacks(self, rank: int) -> Path:
        """Python stacks of rank `rank`, dumped when the runner asks for them."""
        return self.path / f"stacks_{rank}.txt"

    def nvml_samples(self, hostname: str) -> Path:
        """The NVML samples of one node."""
        return self.path / f"nvml_{hostname}.csv"

    def nvml_summary(self, hostname: str) -> Path:
        """What the sampler of one node says of itself (NvmlSummary)."""
        return self.path / f"nvml_{hostname}.json"

    def host_samples(self, hostname: str) -> Path:
        """Samples of the host memory of a watched script's processes on one node."""
        return self.path / f"host_{hostname}.csv"


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @property
    def run_id(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def sweep(self) -> Path:
        """The sweep file as asked, with what the command line changed."""
        return self.path / "sweep.yaml"

    @property
    def environment(self) -> Path:
        """Versions, hardware, topology, git commit."""
        return self.path / "environment.json"

    @property
    def plan(self) -> Path:
        """The trials in order, the skipped ones with their reasons."""
        return self.path / "plan.json"

    @property
    def trials(self) -> Path:
        """The folder that holds a folder for each trial."""
        return self.path / "trials"

    def trial(self, trial_id: str) -> TrialFolder:
        """The folder of trial `trial_id`."""
        return TrialFolder(self.trials / trial_id)


def write_whole(path: Path, text: str) -> None:
    """Write `text` so that a reader sees the old file or the new one, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
