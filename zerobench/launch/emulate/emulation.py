"""One emulation from its request to its verdict and its run folder."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from zerobench.common.errors import UserError
from zerobench.common.redaction import redact_arguments
from zerobench.common.training_python import training_python
from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Status
from zerobench.config.trial.trial import SCRIPT, TrialSpec
from zerobench.emulator.emulator import find_emulator
from zerobench.launch.emulate.figures import RankFit, Verdict, rank_fit
from zerobench.launch.emulate.part import Account, End, Part, as_emulated
from zerobench.launch.emulate.play import PlayedRank, Stage, play_aside, read_account
from zerobench.launch.emulate.request import EmulationRequest
from zerobench.launch.emulate.tries import Say, try_changes
from zerobench.launch.machine.installed import check_inside
from zerobench.launch.machine.tried_versions import untried
from zerobench.launch.machine.variables import values_to_redact
from zerobench.launch.run.stop import Stop, stop_on_signals
from zerobench.launch.run.trial_record import readable_ranks, trial_record, write_record
from zerobench.launch.tracking.command import Command, CommandProgress, Show
from zerobench.launch.tracking.own_trial import laid_out, lay_out_own_run, unknown_trial
from zerobench.launch.tracking.watch import script_name
from zerobench.records.folder import RunFolder, TrialFolder, write_whole
from zerobench.records.records import Failure, HostSummary, RankRecord, read_or_none
from zerobench.records.trials import PlainTrial, Trial

COMPILED = "torch.compile: bytes by category are of the uncompiled model, all other figures of the compiled one"
NO_VALUES = "emulated: no values are computed; ignore losses, norms and times"


@dataclass
class Emulation:
    """What came of a request."""

    request: EmulationRequest
    run: RunFolder
    verdict: Verdict
    interrupted: bool = False
    hosts: list[HostSummary] = field(default_factory=list)
    trial: TrialSpec | None = None
    """The work, as far as a tracker saw it; None where it trains a part of its model, of which it says no more."""
    played: Trial | None = None
    """The run's trial with the records of its ranks; None before it is written."""


def emulate(request: EmulationRequest, say: Say) -> Emulation:
    """Play the ranks that were asked for, then what makes them fit where they do not.

    Raises UserError: the emulator is not there, or the command is not one that can be played.
    """
    stage = Stage.of(find_emulator(), request)
    check_inside()
    for line in untried():
        say(line)
    stage.emulator.variables(stage.gpu, request.cluster.gpus_per_node)  # what it cannot show is said before all else
    trial = unknown_trial(request.name or script_name(request.command))
    safe = redact_arguments(request.command, values_to_redact(os.environ))
    run = lay_out_own_run(request.reports, trial, {"name": trial.trial_id, "command": safe, "emulated": True}, safe)
    folder = run.trial(trial.trial_id)
    begun_s = time.time()
    made = Emulation(request, run, Verdict((), request.cluster.gpus_per_node, request.cluster.host_memory_bytes))
    try:
        with stop_on_signals() as stop:
            accounts = _play(stage, folder, made, stop, say)
    except UserError:
        shutil.rmtree(run.path, ignore_errors=True)  # nothing was played
        raise
    records = {record.rank: record for record in readable_ranks(folder)}
    made.verdict = _judge(stage, folder, accounts, records, say, interrupted=made.interrupted)
    _write(made, folder, trial, records, begun_s)
    return made


def _play(stage: Stage, folder: TrialFolder, made: Emulation, stop: Stop, say: Say) -> list[Account]:
    """Every rank in turn, its memory named; those after one that failed are left out."""
    accounts: list[Account] = []
    for rank in stage.request.ranks:
        doing = f"rank {rank} of {stage.request.cluster.num_gpus} on an emulated {stage.request.cluster.gpu.name}"
        say(doing)
        part = stage.part(stage.request.command, rank, folder, under_ledger=True)
        command = stage.command()
        quiet = Show(out=_unseen, err=_unseen, progress=_telling(say, doing), note=say)
        process = Command(command[0], command, folder, quiet, stage.variables(part, folder))
        ending, host, _ = process.run(stop)
        made.hosts = [host]
        accounts.append(read_account(part, process.returncode))
        accounts[-1].notes.extend(process.notes)
        accounts[-1].notes.extend(_unused_interpreter(stage.request.command))
        if ending.stopped is not None:
            made.interrupted = True
            break
        if accounts[-1].compiles and accounts[-1].end is not End.FAILED:
            say(again_compiled(accounts[-1]))
            accounts[-1] = play_aside(stage, stage.request.command, rank, compiled=True).account
            accounts[-1].notes.append(COMPILED)
        if accounts[-1].end is End.FAILED:
            break
    return accounts


def _unused_interpreter(command: Sequence[str]) -> list[str]:
    """Return a note if the command names a program of another environment: its packages were not used."""
    python, folder = training_python(), Path(command[0]).parent
    if "/" not in command[0] or not (folder / "python").exists() or folder.absolute() == python.bin:
        return []
    return [f"ran under {python.python}, not with the packages of {command[0]}: see --python"]


def again_compiled(account: Account) -> str:
    """Why a rank is played once more, and what may take long then."""
    compiler, first = "torch.compile", ""
    if account.deepcompiles:
        compiler, first = "DeepCompile", " (at first use its C++ compiles: minutes, once per machine)"
    return f"rank {account.rank} uses {compiler}; running again compiled{first}, its memory counted and not named"


def _telling(say: Say, doing: str) -> Callable[[CommandProgress], None]:
    return lambda now: say(doing, now.ranks)


def _unseen(_chunk: bytes) -> None:
    """What a script prints is kept in the run's folder."""


def _keep_need(folder: TrialFolder, refused: RankRecord, fit: RankFit, needed: PlayedRank) -> RankRecord:
    """Let the rank's record hold the memory of the play that had room for everything, and what it needs in all."""
    failure, played = refused.failure, needed.record
    if failure is None or played is None or fit.needed_bytes is None or played.status is not Status.COMPLETED:
        return refused
    failure = failure.model_copy(update={"bytes_needed": fit.needed_bytes})
    record = played.model_copy(update={"trial_id": refused.trial_id, "status": refused.status, "failure": failure})
    write_whole(folder.rank_record(refused.rank), record.model_dump_json())
    if needed.courses is not None:
        courses = needed.courses.model_copy(update={"trial_id": refused.trial_id})
        write_whole(folder.memory_courses(refused.rank), courses.model_dump_json())
    return record


def _kept_need(record: RankRecord | None) -> int | None:
    return None if record is None or record.failure is None else record.failure.bytes_needed


def _judge(
    stage: Stage,
    folder: TrialFolder,
    accounts: Sequence[Account],
    records: dict[int, RankRecord],
    say: Say,
    *,
    interrupted: bool,
) -> Verdict:
    request = stage.request
    fits: list[RankFit] = []
    for account in accounts:
        needed: PlayedRank | None = None
        if account.end is End.OUT_OF_DEVICE_MEMORY and not interrupted:
            say(f"rank {account.rank} does not fit; running again with unlimited GPU memory to see what it needs")
            needed = play_aside(stage.boundless, request.command, account.rank, compiled=account.compiles, named=True)
        record = records.get(account.rank)
        more = (None, None) if needed is None else (needed.account, needed.record)
        fit = rank_fit(account, record, stage.gpu.memory_bytes, *more)
        fits.append(fit)
        if record is not None and needed is not None:
            records[account.rank] = _keep_need(folder, record, fit, needed)
    verdict = Verdict(tuple(fits), request.cluster.gpus_per_node, request.cluster.host_memory_bytes)
    if verdict.fits is not False or verdict.failed is not None or not request.tries or interrupted:
        return verdict
    tries, not_tried = try_changes(stage, verdict, say)
    return replace(verdict, tries=tries, not_tried=not_tried)


def _write(
    made: Emulation, folder: TrialFolder, asked: TrialSpec, records: dict[int, RankRecord], begun_s: float
) -> None:
    """The trial as it was found, and its record."""
    request = made.request
    trial = _settled(folder, asked, request)
    made.trial = known_work(trial, records.values())
    record = trial_record(
        trial,
        made.run.run_id,
        _status(made, records),
        len(made.verdict.ranks),
        started_at_s=begun_s,
        ended_at_s=time.time(),
        ranks_reported=len(records),
        host=made.hosts,
        notes=[
            NO_VALUES,
            f"emulated: rank {', '.join(map(str, request.ranks))} of {request.cluster.num_gpus}",
            *(
                f"torch.compile: memory rows are of the uncompiled model; compiled, rank {one.rank} allocates "
                f"{format_bytes(one.peak_bytes or 0)} and reserves {format_bytes(one.reserved_bytes or 0)} at most"
                for one in (rank.account for rank in made.verdict.ranks)
                if one.compiles
            ),
        ],
    )
    write_record(folder, record)
    made.played = PlainTrial(trial, record, tuple(records[rank] for rank in sorted(records)))


def known_work(trial: TrialSpec, records: Iterable[RankRecord]) -> TrialSpec | None:
    """`trial` where its ranks train the whole of its model; None where they say nothing, or train a part (adapters)."""
    counts = [record.parameters for record in records]
    are_whole = all(tensor is not None and tensor.trainable == tensor.total for tensor in counts)
    return trial if counts and are_whole else None


def _settled(folder: TrialFolder, asked: TrialSpec, request: EmulationRequest) -> TrialSpec:
    """A tracker's word of the work, or that nothing is known of it; on the GPUs that were asked for in any case."""
    trial = read_or_none(folder.spec, TrialSpec) or asked
    if trial.strategy == SCRIPT:
        part = Part.model_validate_json(folder.emulated_part(request.ranks[0]).read_bytes())
        trial = as_emulated(laid_out(trial, request.cluster.num_gpus, request.cluster.gpus_per_node), part)
        write_whole(folder.spec, trial.model_dump_json(indent=1))
    return trial


def _status(made: Emulation, records: Mapping[int, RankRecord]) -> tuple[Status, Failure | None]:
    if made.interrupted:
        return Status.INTERRUPTED, Failure(message="stopped before its end")
    failed = made.verdict.failed
    if failed is not None:
        message = failed.message or f"exit status {failed.exit_code}"
        return Status.CRASH, Failure(rank=failed.rank, message=f"rank {failed.rank}: the script failed: {message}")
    for rank in made.verdict.ranks:
        refusal = rank.account.refusal
        if rank.fits is False and refusal is not None:
            return Status.OUT_OF_DEVICE_MEMORY, Failure(
                rank=rank.account.rank,
                message=f"rank {rank.account.rank}: {rank.account.message}",
                bytes_asked=refusal.bytes_asked,
                bytes_free=refusal.bytes_free,
                bytes_needed=_kept_need(records.get(rank.account.rank)),
                standing=refusal.standing,
                evidence="the allocator's exception",
            )
    if made.verdict.fits_host is False:
        needed, has = made.verdict.host_node_bytes, made.verdict.host_memory_bytes
        return Status.OUT_OF_HOST_MEMORY, Failure(
            message=f"host memory per node: tensors need {needed} bytes ({made.verdict.host_basis}), available {has}",
            bytes_asked=needed,
            bytes_free=has,
            host_standing=made.verdict.host_standing,
            evidence="host memory counted by the ledger",
        )
    return Status.COMPLETED, None
