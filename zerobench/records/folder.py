"""Where everything of a run lies; the only file that knows the names, and how a file is put there whole."""

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
from zerobench.common.file_errors import failure_of, is_for_want_of_a_working_directory, naming, remedy
from zerobench.common.replacing import replacing

TRIAL_VARIABLE = "ZEROBENCH_TRIAL"
"""Environment variable that every process of a trial inherits; its value is the trial's folder. It is how a trial's
processes are told from all others, and how a tracker inside of a watched script finds where to write."""

NEEDS_GPU_VARIABLE = "ZEROBENCH_NEEDS_GPU"
"""Environment variable of ranks that were promised a GPU: one that finds none fails, and does not measure the CPU."""

_TRIALS = "trials"

SNAPSHOT = "memory_snapshot_{}.pickle"
"""torch's own, of a rank whose memory was refused."""


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
    def start(self) -> Path:
        """Who began it, where and when (Start); there as long as it has begun, ended or not."""
        return self.path / "start.json"

    @property
    def lock(self) -> Path:
        """What its runner holds."""
        return self.path / ".lock"

    @property
    def record(self) -> Path:
        """How the trial ended (TrialRecord); there once it has."""
        return self.path / "record.json"

    @property
    def resumed(self) -> TrialFolder:
        """The second launch of a trial with a checkpoint: a folder of the same kind, but for the record."""
        return TrialFolder(self.path / "resumed")

    @property
    def resume_from(self) -> Path:
        """In the folder of a second launch: which checkpoint it goes on from (ResumeFrom)."""
        return self.path / "resume_from.json"

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are written to, unless the sweep names another place."""
        return self.path / "checkpoints"

    @property
    def weights(self) -> Path:
        """The model's own files, there while a trial that loads them is built."""
        return self.path / "weights"

    def outside(self, named: str, trial_id: str) -> Path:
        """The folder of trial `trial_id` under `named`, a place outside of the run that many runs may share.

        A trial's id is the same in every run of its sweep, and two runs under different folders may begin in the same
        second: so the run's name is in it, and a mark made of the path under which the run lies.
        """
        run = next((above.parent for above in self.path.parents if above.name == _TRIALS), self.path.parent)
        mark = hashlib.sha256(os.fsencode(os.path.abspath(run))).hexdigest()[:8]  # noqa: PTH100 -- links stay
        return Path(named) / f"{run.name}-{mark}" / trial_id

    def rank_record(self, rank: int) -> Path:
        """What rank `rank` measured (RankRecord)."""
        return self.path / f"rank_{rank}.json"

    def rank_records(self) -> list[Path]:
        """The rank records that are there, by rank."""
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
        """Where rank `rank` is: pid, hostname, phase, step, memory (Progress); rewritten as it goes."""
        return self.path / f"progress_{rank}.json"

    def rank_exit(self, rank: int) -> Path:
        """The exit status of rank `rank` as a shell tells it, where what started the rank could see it."""
        return self.path / f"exit_{rank}.txt"

    def rank_exits(self) -> list[Path]:
        """The exit statuses that are there."""
        return sorted(self.path.glob("exit_*.txt"))

    def stacks(self, rank: int) -> Path:
        """Python stacks of rank `rank`, dumped when the runner asks for them."""
        return self.path / f"stacks_{rank}.txt"

    def nvml_samples(self, node: int | str) -> Path:
        """The NVML samples of node `node` of the trial: an index, since hostnames may be equal or wrong.

        A text is the hostname by which older versions named the file.
        """
        return self.path / f"nvml_{_node_name(node)}.csv"

    def nvml_summary(self, node: int | str) -> Path:
        """What the sampler of one node says of itself (NvmlSummary)."""
        return self.path / f"nvml_{_node_name(node)}.json"

    def nvml_summaries(self) -> list[Path]:
        """The summaries that are there, by node."""
        return sorted(self.path.glob("nvml_*.json"), key=lambda path: (len(path.name), path.name))

    def emulated_part(self, rank: int) -> Path:
        """What rank `rank` is to play on an emulated GPU (zerobench.launch.emulate.part.Part)."""
        return self.path / f"emulated_part_{rank}.json"

    def emulated_account(self, rank: int) -> Path:
        """What the emulated device of rank `rank` held (zerobench.launch.emulate.part.Account)."""
        return self.path / f"emulated_account_{rank}.json"

    def memory_snapshot(self, rank: int) -> Path:
        """Torch's own memory snapshot of rank `rank`, for pytorch.org/memory_viz; nothing here reads it."""
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
    def decision(self) -> Path:
        """The recommended configuration of a plan or a search (Decision); absent in other runs."""
        return self.path / "decision.json"

    @property
    def verdict(self) -> Path:
        """The verdict of the command that made the run (zerobench.records.verdict), where it gave one."""
        return self.path / "verdict.json"

    @cached_property
    def trials(self) -> Path:
        """The folder that holds a folder for each trial."""
        return self.path / _TRIALS

    def trial(self, trial_id: str) -> TrialFolder:
        """The folder of trial `trial_id`."""
        return TrialFolder(self.trials / trial_id)

    @property
    def asked(self) -> Path:
        """The trials as asked, a line each: id, spec, DeepSpeed config. Folders that are made when their trial begins
        are made of it, and a trial whose own spec is torn is known by it. Older runs that were not submitted have none.
        """
        return self.path / "waiting.jsonl"

    @property
    def nodes(self) -> Path:
        """The folder with the environment and topology of each compute node, where Slurm's jobs run the trials."""
        return self.path / "nodes"

    @property
    def slurm(self) -> Path:
        """The folder of what was handed to Slurm."""
        return self.path / "slurm"

    @property
    def submission(self) -> Path:
        """Every array and job that was ever submitted for the run (Submission)."""
        return self.slurm / "submission.json"

    @property
    def slurm_logs(self) -> Path:
        """The folder of what batch scripts printed."""
        return self.slurm / "logs"

    def slurm_script(self, name: str) -> Path:
        """The batch script of job `name`."""
        return self.slurm / f"{name}.sbatch"

    def slurm_tasks(self, name: str) -> Path:
        """The trials of job `name`: a line for each task of the array, trial ids with spaces between."""
        return self.slurm / f"{name}.tasks"


@contextlib.contextmanager
def writing(what: str) -> Iterator[None]:
    """Raises UserError in place of an OSError of the block: `what` (an option and its path) cannot be written."""
    try:
        yield
    except OSError as error:
        reason = failure_of(error)
        if is_for_want_of_a_working_directory(error):
            raise UserError(reason) from None
        if remedy(error) is None or what.endswith(f": {error.filename}"):
            reason = reason.partition(": ")[2]
        raise UserError(f"{what}: cannot be written: {reason}") from None


def remove_outside(path: Path) -> None:
    """Delete what a trial keeps outside of its run (TrialFolder.outside), and the run's folder there with the last.

    Raises OSError: something of it cannot be deleted.
    """
    if path.is_dir():
        shutil.rmtree(path)
    with contextlib.suppress(OSError):  # not there, or other trials of the run have something in it
        path.parent.rmdir()


def _node_name(node: int | str) -> str:
    return f"node{node}" if isinstance(node, int) else node


def check_writable(option: str, path: Path) -> None:
    """Hours of work must not end in a file that cannot be written, or in one called `-`.

    Raises UserError: no folder to write in, or standard output, which has what is shown.
    """
    if str(path) == "-":
        raise UserError(f"{option}: -: name a file; standard output has the tables already")
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"{option}: {path}: its folder does not exist")


def write_whole(path: Path, text: str) -> None:
    """Write `text` so that a reader sees the old file or the new one, never half of it."""
    write_pieces(path, [text])


def write_pieces(path: Path, pieces: Iterable[str]) -> None:
    """The same for a text that is made as it is written."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(pieces)
        file.flush()
        if temporary != path:  # neither a device nor a pipe
            os.fsync(file.fileno())


def write_plain(path: Path, text: str) -> None:
    """Write `text` without waiting for the disk; a reader may see a part of it. Raises OSError, which names `path`."""
    with naming(path):
        path.write_text(text, encoding="utf-8")
