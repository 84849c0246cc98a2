"""A trial in a fork of the simulator: its one rank in this process, or all of its ranks in further forks.

- All ranks: each runs on the GPU of an emulated node, and they find each other through torch's own store. A node is one
  memory account that its ranks share, as processes of a real node share their driver. The store is this process's, so
  that no rank waits for another's end.
- A rank that does not fit its emulated GPU is played again on one with room for everything: a refused allocation does
  not tell how much is missing, since what would follow is unknown. The record has both: the refusal on the requested
  GPU, and the memory that the work needs in all.
- A step of which only some micro-batches were played is scaled to the whole step.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from zerobench.common.errors import UserError
from zerobench.common.rank_processes import leave
from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Status
from zerobench.config.derived.batch import limit_micro_batches
from zerobench.config.derived.step_plan import plan_steps
from zerobench.config.hardware.hardware import known_gpu
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.emulator.emulator import ACCOUNT_VARIABLE
from zerobench.emulator.gpu import VARIABLE, EmulatedGpu
from zerobench.estimate.memory.record import formula_record
from zerobench.rank.loop.launched import one_of
from zerobench.records.folder import TrialFolder, write_whole
from zerobench.records.progress import ProgressFile, Rank
from zerobench.records.records import CollectiveTraffic, CountedFlops, NvmeTraffic, RankRecord

_GROWING: dict[str, tuple[str, ...]] = {
    "collectives": ("calls", "message_bytes"),
    "flops": ("flops",),
    "nvme": ("read_bytes", "written_bytes"),
}
"""Lists of a record whose rows grow with micro-batches, with the figures that grow."""

_Row = CollectiveTraffic | CountedFlops | NvmeTraffic


def scale_to_trial(record: RankRecord, trial: TrialSpec) -> RankRecord:
    """Scale `record` of `limit_micro_batches(trial)` to the whole step of `trial`: memory stays as played.

    Collectives, FLOPs and bytes on drives grow by the ratio of the closed forms for all micro-batches and those played.
    """
    short = limit_micro_batches(trial)
    if short is trial:
        return record
    played, planned = short.gradient_accumulation_steps, trial.gradient_accumulation_steps
    notes = [
        *record.notes,
        f"{played} of {planned} micro-batches of a step played; the others add their inputs and losses",
    ]
    try:
        few, all_of_them = (formula_record(spec, plays_allocator=False) for spec in (short, trial))
    except UserError as error:
        notes.append(f"collectives, FLOPs and bytes on drives are those of {played} micro-batches: {error}")
        return record.model_copy(update={"trial_id": trial.trial_id, "notes": notes})
    grown = {name: _grown(name, *(getattr(part, name) for part in (record, few, all_of_them))) for name in _GROWING}
    flops = None if record.flops_per_step is None else record.flops_per_step * planned / played
    return record.model_copy(update={"trial_id": trial.trial_id, "notes": notes, "flops_per_step": flops, **grown})


def _grown(name: str, rows: list[_Row], few: list[_Row], all_of_them: list[_Row]) -> list[_Row]:
    """Scale `rows` by the ratio of the formula's rows for all and for `few` micro-batches; rows that the formula lacks,
    such as norms, occur once a step.
    """
    before, after = ({_key(row): row for row in some} for some in (few, all_of_them))
    scaled = []
    for row in rows:
        key = _key(row)
        figures: dict[str, int] = {}
        for field in _GROWING[name] if key in before else ():
            now, part, whole = (int(getattr(each, field)) for each in (row, before[key], after[key]))
            figures[field] = round(now * whole / part) if part else now
        scaled.append(row.model_copy(update=figures) if figures else row)
    return scaled


def _key(row: Any) -> tuple[str, ...]:
    return (row.step, row.phase, getattr(row, "kind", ""), str(getattr(row, "group_size", "")))


AGAIN = 75
"""Exit status of a trial's process that is to be played again, with room (EX_TEMPFAIL)."""


def may_be_played_again(trial: TrialSpec, record: RankRecord) -> bool:
    """True if an emulated GPU refused memory."""
    return trial.evidence is Evidence.EMULATED and record.status is Status.OUT_OF_DEVICE_MEMORY


def make_room(trial: TrialSpec) -> None:
    """Give this process's GPU boundless memory from now on; it must not have been used yet."""
    os.environ[VARIABLE] = _gpu(trial).boundless.variable(trial.gpus_per_node)


def add_need(trial: TrialSpec, refused: RankRecord, played: RankRecord) -> RankRecord:
    """Combine the record of the play with room with the refusal in `refused`; `refused` itself if that play failed too.

    The need is at least the memory in use plus the refused request: an allocator that has released segments may place
    later blocks less efficiently than one that never had to.
    """
    failure, outside = refused.failure, played.context
    if played.status is not Status.COMPLETED or failure is None:
        return refused
    peak = max((row.held_bytes for row in played.device_memory), default=0)
    needed = peak + ((outside.context_bytes or 0) + (outside.collectives_bytes or 0) if outside else 0)
    capacity = _gpu(trial).memory_bytes
    if failure.bytes_asked is not None and failure.bytes_free is not None:
        needed = max(needed, capacity - failure.bytes_free + failure.bytes_asked)
    message = f"it needs {format_bytes(needed)} of {format_bytes(capacity)}: {failure.message}"
    failure_with_need = failure.model_copy(update={"message": message, "bytes_needed": needed})
    return played.model_copy(update={"status": refused.status, "failure": failure_with_need})


def _gpu(trial: TrialSpec) -> EmulatedGpu:
    return EmulatedGpu.build(known_gpu(trial.prediction.gpu or ""))


PATIENCE_S = 60.0
"""Seconds for the other ranks to end after one has failed: they may wait for it in vain."""
_POLL_S = 0.05
_PARENT_DIED = 1  # PR_SET_PDEATHSIG (prctl(2))

Play = Callable[[Rank], int]


def play_peers(trial: TrialSpec, play: Play) -> int:
    """Play every rank of `trial`; returns the exit status: AGAIN if one did not fit, else 1 if one failed."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, and not re-exported by its stubs

    with TemporaryDirectory(prefix="zerobench-nodes-") as accounts:
        listener = socket.create_server(("127.0.0.1", 0), backlog=socket.SOMAXCONN)
        port = listener.getsockname()[1]
        ranks = {_fork(trial, number, port, Path(accounts), play): number for number in range(trial.world_size)}
        fd = listener.detach()
        store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=fd)
        codes = _await(ranks)
        del store  # only now: ranks that still run need it
    for rank, code in sorted(codes.items()):
        if code < 0:
            print(f"rank {rank} was ended by signal {-code}", file=sys.stderr)  # noqa: T201 - its trial's stderr
    failed = [code for _, code in sorted(codes.items()) if code]
    return AGAIN if AGAIN in failed else min(1, len(failed))


def _fork(trial: TrialSpec, number: int, port: int, accounts: Path, play: Play) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    ctypes.CDLL(None).prctl(_PARENT_DIED, signal.SIGKILL)  # killing the trial kills all of its ranks
    if os.getppid() != parent:
        os._exit(1)
    per_node = trial.gpus_per_node
    rank = Rank(
        rank=number,
        local_rank=number % per_node,
        world_size=trial.world_size,
        hostname=socket.gethostname(),
        pid=os.getpid(),
        node=number // per_node,
    )
    os.environ.update(
        {
            VARIABLE: EmulatedGpu.build(known_gpu(trial.prediction.gpu or "")).variable(per_node),
            ACCOUNT_VARIABLE: str(accounts / f"node{rank.node}"),
            "CUDA_VISIBLE_DEVICES": str(rank.local_rank),  # torch counted one device before the fork
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
        }
    )
    code = 1
    try:
        code = play(rank)
    except BaseException:  # noqa: BLE001 - the process ends here, with the reason on its stderr
        traceback.print_exc()
    return leave(code)


def _await(ranks: dict[int, int]) -> dict[int, int]:
    """Wait for the processes in `ranks`; returns exit statuses by rank, as in subprocess. Kills those that still wait
    for a failed one after PATIENCE_S.
    """
    codes: dict[int, int] = {}
    give_up_at: float | None = None
    while ranks:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            codes[ranks.pop(pid)] = code
            if code and give_up_at is None:
                give_up_at = time.monotonic() + PATIENCE_S
        elif give_up_at is not None and time.monotonic() > give_up_at:
            for waiting in ranks:
                os.kill(waiting, signal.SIGKILL)
            give_up_at = None
        else:
            time.sleep(_POLL_S)
    return codes


def run_trial(folder: TrialFolder, *, with_room: bool) -> int:
    """Run one trial, with its output in its folder; returns the exit status. `with_room`: it did not fit before."""
    for stream, path in ((1, folder.stdout), (2, folder.stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        trial = TrialSpec.model_validate_json(folder.spec.read_text(encoding="utf-8"))
        if trial.prediction.all_ranks:
            return play_peers(trial, lambda rank: _run_rank(trial, folder, rank, with_room=with_room))
        return _run_rank(trial, folder, one_of(trial), with_room=with_room)
    except BaseException:  # noqa: BLE001 - the process ends here, and says why
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _run_rank(trial: TrialSpec, folder: TrialFolder, rank: Rank, *, with_room: bool) -> int:
    """Play one rank and write its record; returns the exit status, AGAIN if its GPU was too small."""
    from zerobench.rank.ledger.failures import describe
    from zerobench.rank.loop.rank import RankRun

    if with_room:
        make_room(trial)
    run = RankRun(limit_micro_batches(trial), folder, rank, ProgressFile(folder, rank, len(plan_steps(trial))))

    def end(error: BaseException) -> int:
        run.record.status, run.record.failure = describe(error, run.marks, rank.rank, run.device)
        traceback.print_exception(error)
        return _keep(trial, folder, run.record, with_room=with_room)

    run.world.end = end
    try:
        run.run()
    except BaseException as error:  # noqa: BLE001 - whatever ended the rank is its result
        return end(error)
    return _keep(trial, folder, run.record, with_room=with_room)


def _keep(trial: TrialSpec, folder: TrialFolder, record: RankRecord, *, with_room: bool) -> int:
    path, record = folder.rank_record(record.rank), scale_to_trial(record, trial)
    if with_room and path.exists():
        record = add_need(trial, RankRecord.model_validate_json(path.read_bytes()), record)
    write_whole(path, record.model_dump_json())
    if not with_room and may_be_played_again(trial, record):
        return AGAIN
    return 0 if record.failure is None else 1
