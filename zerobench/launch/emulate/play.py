"""Plays ranks of a user's command on an emulated GPU, one process each, one after the other."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from zerobench.common.errors import UserError
from zerobench.common.training_python import training_python
from zerobench.common.training_variables import training_variables
from zerobench.emulator.emulator import Emulator
from zerobench.emulator.gpu import EmulatedGpu
from zerobench.launch.emulate.part import PART_VARIABLE, Account, End, Part
from zerobench.launch.emulate.request import EmulationRequest
from zerobench.launch.run.outcome import describe_exit, shell_exit_code
from zerobench.launch.run.trial_record import readable_ranks
from zerobench.records.folder import TRIAL_VARIABLE, TrialFolder, write_whole
from zerobench.records.records import MemoryCourses, RankRecord, read_or_none

_MODULE = "zerobench.launch.emulate.inside"


@dataclass(frozen=True)
class Stage:
    """Where ranks play: an emulator and the GPU that it shows."""

    emulator: Emulator
    gpu: EmulatedGpu
    request: EmulationRequest

    @classmethod
    def of(cls, emulator: Emulator, request: EmulationRequest) -> Stage:
        """The GPU that was asked for."""
        return cls(emulator, EmulatedGpu.build(request.cluster.gpu), request)

    @property
    def boundless(self) -> Stage:
        """The same with memory for everything."""
        return replace(self, gpu=self.gpu.boundless)

    def part(
        self, command: Sequence[str], rank: int, folder: TrialFolder, *, under_ledger: bool, aside: bool = False
    ) -> Part:
        """What the process of `rank` is to play; its files lie in `folder`, a trial's unless it plays `aside`."""
        request = self.request
        return Part(
            command=list(command),
            rank=rank,
            world_size=request.cluster.num_gpus,
            ranks_per_node=request.cluster.gpus_per_node,
            gpu=request.cluster.gpu.name,
            host_memory_bytes=request.cluster.host_memory_bytes,
            steps=request.steps,
            account=folder.emulated_account(rank).absolute(),
            snapshot=folder.memory_snapshot(rank).absolute() if under_ledger and not aside else None,
            under_ledger=under_ledger,
            speaks=rank == request.ranks[0] and not aside,
        )

    def command(self) -> list[str]:
        """What plays a part."""
        return [str(self.emulator.python), "-m", _MODULE]

    def variables(self, part: Part, folder: TrialFolder) -> dict[str, str]:
        """What its environment has more than ours; writes the part down."""
        file = folder.emulated_part(part.rank)
        write_whole(file, part.model_dump_json(indent=1))
        theirs = training_variables()
        environ = {**os.environ, **theirs}
        added = {**theirs, **self.emulator.variables(self.gpu, part.ranks_per_node, environ=environ)}
        path = added.get("PYTHONPATH", environ.get("PYTHONPATH", ""))
        ours = str(Path(__file__).resolve().parents[3])
        if training_python().is_own and ours not in path.split(os.pathsep):
            path = f"{path}{os.pathsep}{ours}" if path else ours
        return {**added, "PYTHONPATH": path, PART_VARIABLE: str(file.absolute())}


def read_account(part: Part, returncode: int) -> Account:
    """What the process left, or that it left nothing. Raises UserError: the command is not one that can be played."""
    account = read_or_none(part.account, Account)
    if account is None:
        message = f"its process {describe_exit(returncode)} without a result"
        return Account(rank=part.rank, end=End.FAILED, exit_code=shell_exit_code(returncode) or 1, message=message)
    if account.end is End.REFUSED:
        raise UserError(account.message or "COMMAND: cannot be emulated")
    if returncode and account.exit_code == 0:  # it died while Python was ending
        account.notes.append(f"its process {describe_exit(returncode)} after the script's end")
    return account


@dataclass(frozen=True)
class PlayedRank:
    """What is left of a rank that played aside."""

    account: Account
    record: RankRecord | None = None
    """The ledger's, where it watched."""
    courses: MemoryCourses | None = None
    """Of the same."""


def play_aside(
    stage: Stage,
    command: Sequence[str],
    rank: int,
    added: Mapping[str, str] | None = None,
    *,
    compiled: bool = False,
    named: bool = False,
) -> PlayedRank:
    """Play one rank quietly, in a folder that is gone afterwards; `added` goes into its environment.

    Bytes are named if `named`, and for a node's memory, which the ledger alone knows; else they are only counted, and
    also if it is to play `compiled`, since nothing is compiled under the ledger.

    Raises UserError: the command is not one that can be played.
    """
    with _scratch() as path:
        folder = TrialFolder(path)
        under_ledger = (named or stage.request.cluster.host_memory_bytes is not None) and not compiled
        part = stage.part(command, rank, folder, under_ledger=under_ledger, aside=True)
        process = subprocess.run(
            stage.command(),
            env={**os.environ, **(added or {}), **stage.variables(part, folder), TRIAL_VARIABLE: str(path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        account = read_account(part, process.returncode)
        record = next((record for record in readable_ranks(folder) if record.rank == rank), None)
        return PlayedRank(account, record, read_or_none(folder.memory_courses(rank), MemoryCourses))


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="zerobench-emulate-") as folder:
        yield Path(folder)
