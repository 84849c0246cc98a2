"""Layout of a run's folder; the only module with file names, and with atomic writes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from zerobench.common.errors import UserError
from zerobench.common.file_errors import failure_of, is_missing_working_directory, naming, remedy
from zerobench.common.temporary_files import replacing

TRIAL_VARIABLE = "ZEROBENCH_TRIAL"
"""Environment variable with the trial's folder, inherited by every process of a trial. It identifies them, and tells a
tracker within a watched script where to write."""

NEEDS_GPU_VARIABLE = "ZEROBENCH_NEEDS_GPU"
"""Environment variable of ranks that need a GPU: a rank without one fails rather than measuring the CPU."""

_TRIALS = "trials"

SNAPSHOT = "memory_snapshot_{}.pickle"
"""torch's own snapshot, of a rank that ran out of memory."""


@dataclass(frozen=True)
class TrialFolder:
    """The folder of one trial."""

    path: Path

    @property
    def spec(self) -> Path:
        """Specification of the trial (TrialSpec)."""
        return self.path / "trial.json"

    @property
    def ds_config(self) -> Path:
        """DeepSpeed config passed to the engine; absent for strategies without DeepSpeed."""
        return self.path / "ds_config.json"

    @property
    def command(self) -> Path:
        """Command line of the launcher, one argument per line."""
        return self.path / "cmd.txt"

    @property
    def stdout(self) -> Path:
        """Standard output of the launcher and its ranks."""
        return self.path / "stdout.txt"

    @property
    def stderr(self) -> Path:
        """Standard error of the launcher and its ranks."""
        return self.path / "stderr.txt"

    @property
    def start(self) -> Path:
        """Runner, nodes and time of the trial's start (Start); exists once it has begun, ended or not."""
        return self.path / "start.json"

    @property
    def lock(self) -> Path:
        """Lock file held by its runner."""
        return self.path / ".lock"

    @property
    def record(self) -> Path:
        """Result of the trial (TrialRecord); exists once it has ended."""
        return self.path / "record.json"

    @property
    def resumed(self) -> TrialFolder:
        """Second launch of a trial with a checkpoint: a folder with the same layout, without a record."""
        return TrialFolder(self.path / "resumed")

    @property
    def resume_from(self) -> Path:
        """In the folder of a second launch: the checkpoint that it resumes from (ResumeFrom)."""
        return self.path / "resume_from.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints, unless the sweep names another place."""
        return self.path / "checkpoints"

    @property
    def weights(self) -> Path:
        """Model files, while a trial that loads them is being built."""
        return self.path / "weights"

    def outside(self, named: str, trial_id: str) -> Path:
        """Folder of trial `trial_id` under `named`, a place outside the run that many runs may share.

        A trial's id is the same in every run of its sweep, and two runs under different folders may begin in the same
        second: so the path includes the run's name and a hash of the run's own path.
        """
        run = next((above.parent for above in self.path.parents if above.name == _TRIALS), self.path.parent)
        mark = hashlib.sha256(os.fsencode(os.path.abspath(run))).hexdigest()[:8]  # noqa: PTH100 -- links stay
        return Path(named) / f"{run.name}-{mark}" / trial_id

    def rank_record(self, rank: int) -> Path:
        """Measurements of rank `rank` (RankRecord)."""
        return self.path / f"rank_{rank}.json"

    def rank_records(self) -> list[Path]:
        """Existing rank records, by rank."""
        try:
            names = os.listdir(self.path)  # noqa: PTH208 -- a glob of ten thousand folders takes ten times as long
        except (FileNotFoundError, NotADirectoryError):
            return []
        ranks = [name[5:-5] for name in names if name.startswith("rank_") and name.endswith(".json")]
        return [self.rank_record(rank) for rank in sorted(map(int, ranks))]

    def memory_courses(self, rank: int) -> Path:
        """Device memory of rank `rank` over start-up and a steady step (MemoryCourses)."""
        return self.path / f"memory_course_{rank}.json"

    def progress(self, rank: int) -> Path:
        """Progress of rank `rank`: pid, hostname, phase, step, memory (Progress); rewritten during the trial."""
        return self.path / f"progress_{rank}.json"

    def rank_exit(self, rank: int) -> Path:
        """Exit status of rank `rank` as a shell reports it, if the rank's launcher could see it."""
        return self.path / f"exit_{rank}.txt"

    def rank_exits(self) -> list[Path]:
        """Existing exit statuses."""
        return sorted(self.path.glob("exit_*.txt"))

    def stacks(self, rank: int) -> Path:
        """Python stacks of rank `rank`, dumped at the runner's request."""
        return self.path / f"stacks_{rank}.txt"

    def nvml_samples(self, node: int | str) -> Path:
        """NVML samples of node `node` of the trial: an index, since hostnames may be equal or wrong.

        A string is the hostname, by which older versions named the file.
        """
        return self.path / f"nvml_{_node_name(node)}.csv"

    def nvml_summary(self, node: int | str) -> Path:
        """Summary of one node's sampler (NvmlSummary)."""
        return self.path / f"nvml_{_node_name(node)}.json"

    def nvml_summaries(self) -> list[Path]:
        """Existing summaries, by node."""
        return sorted(self.path.glob("nvml_*.json"), key=lambda path: (len(path.name), path.name))

    def emulated_part(self, rank: int) -> Path:
        """Part of rank `rank` on an emulated GPU (zerobench.launch.emulate.part.Part)."""
        return self.path / f"emulated_part_{rank}.json"

    def emulated_account(self, rank: int) -> Path:
        """Memory of the emulated device of rank `rank` (zerobench.launch.emulate.part.Account)."""
        return self.path / f"emulated_account_{rank}.json"

    def memory_snapshot(self, rank: int) -> Path:
        """Memory snapshot of rank `rank` by torch, for pytorch.org/memory_viz; not read here."""
        return self.path / SNAPSHOT.format(rank)

    def host_samples(self, node: int | str) -> Path:
        """Samples of the host memory of a watched script's processes on one node."""
        return self.path / f"host_{_node_name(node)}.csv"


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def sweep(self) -> Path:
        """Sweep file, with the command line's changes."""
        return self.path / "sweep.yaml"

    @property
    def environment(self) -> Path:
        """Versions, hardware, topology, git commit."""
        return self.path / "environment.json"

    @property
    def plan(self) -> Path:
        """Trials in order, with the reasons of skipped ones."""
        return self.path / "plan.json"

    @property
    def decision(self) -> Path:
        """The recommended configuration of a plan or a search (Decision); absent in other runs."""
        return self.path / "decision.json"

    @property
    def verdict(self) -> Path:
        """Verdict of the command that created the run, if it has one (zerobench.records.verdict)."""
        return self.path / "verdict.json"

    @cached_property
    def trials(self) -> Path:
        """Parent of the trials' folders."""
        return self.path / _TRIALS

    def trial(self, trial_id: str) -> TrialFolder:
        """The folder of trial `trial_id`."""
        return TrialFolder(self.trials / trial_id)

    @property
    def asked(self) -> Path:
        """Specifications of the trials, one line each: id, spec, DeepSpeed config. Trials' folders are created from it
        when they begin, and a trial with a damaged spec is restored from it. Older runs that were not submitted have
        none.
        """
        return self.path / "waiting.jsonl"

    @property
    def nodes(self) -> Path:
        """Folder with the environment and topology of each compute node, if Slurm's jobs run the trials."""
        return self.path / "nodes"

    @property
    def slurm(self) -> Path:
        """Folder of files passed to Slurm."""
        return self.path / "slurm"

    @property
    def submission(self) -> Path:
        """All arrays and jobs submitted for the run (Submission)."""
        return self.slurm / "submission.json"

    @property
    def slurm_logs(self) -> Path:
        """Folder of the batch scripts' output."""
        return self.slurm / "logs"

    def slurm_script(self, name: str) -> Path:
        """Batch script of job `name`."""
        return self.slurm / f"{name}.sbatch"

    def slurm_tasks(self, name: str) -> Path:
        """Trials of job `name`: one line per task of the array, trial ids separated by spaces."""
        return self.slurm / f"{name}.tasks"


@contextlib.contextmanager
def writing(what: str) -> Iterator[None]:
    """Replace an OSError of the block by UserError: `what` (an option and its path) cannot be written."""
    try:
        yield
    except OSError as error:
        reason = failure_of(error)
        if is_missing_working_directory(error):
            raise UserError(reason) from None
        if remedy(error) is None or what.endswith(f": {error.filename}"):
            reason = reason.partition(": ")[2]
        raise UserError(f"{what}: cannot be written: {reason}") from None


def remove_outside(path: Path) -> None:
    """Delete a trial's folder outside its run (TrialFolder.outside), and the run's own there with the last one.

    Raises OSError if something cannot be deleted.
    """
    if path.is_dir():
        shutil.rmtree(path)
    with contextlib.suppress(OSError):  # not there, or other trials of the run have something in it
        path.parent.rmdir()


def _node_name(node: int | str) -> str:
    return f"node{node}" if isinstance(node, int) else node


def check_writable(option: str, path: Path) -> None:
    """Check that a file can be written before hours of work; `-` is refused.

    Raises UserError: no folder to write to, or standard output, which already has the tables.
    """
    if str(path) == "-":
        raise UserError(f"{option}: -: name a file; standard output has the tables already")
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"{option}: {path}: its folder does not exist")


def write_whole(path: Path, text: str) -> None:
    """Write `text` atomically: a reader sees the old file or the new one."""
    write_pieces(path, [text])


def write_pieces(path: Path, pieces: Iterable[str]) -> None:
    """Write text atomically while it is generated."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(pieces)
        file.flush()
        if temporary != path:  # neither a device nor a pipe
            os.fsync(file.fileno())


def write_plain(path: Path, text: str) -> None:
    """Write `text` without waiting for the disk; a reader may see part of it. Raises OSError, which names `path`."""
    with naming(path):
        path.write_text(text, encoding="utf-8")
