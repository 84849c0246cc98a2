"""A trial with a checkpoint: the first launch saves, and may be made to fail; the second resumes.

Both are ordinary launches, in fresh processes, watched and classified alike. The second has its own folder inside the
trial's, so that neither overwrites the other's measurements.
"""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from zerobench.common.training_python import training_python
from zerobench.common.training_variables import training_variables
from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Status
from zerobench.config.deepspeed import build_ds_config
from zerobench.config.derived.checkpoint_size import room_bytes
from zerobench.config.derived.resume import needs_universal, resumed_trial
from zerobench.config.derived.step_plan import plan_steps
from zerobench.config.derived.strategy import uses_deepspeed
from zerobench.config.models.parameters import num_parameters
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.launcher import MARK, launched_processes
from zerobench.launch.run.logs import last_line
from zerobench.launch.run.quiet import Quiet
from zerobench.launch.run.setup import lay_out_trial
from zerobench.launch.run.stop import Stop
from zerobench.launch.run.trial_record import readable_ranks, skipped_record
from zerobench.records.checkpoint_files import (
    ENGINE,
    UNIVERSAL,
    Position,
    ResumeFrom,
    checkpoints_folder,
    flush_to_disk,
    last,
    size_bytes,
)
from zerobench.records.folder import TrialFolder, remove_outside, write_plain
from zerobench.records.records import Failure, RankRecord, Recovery, TrialRecord

Launch = Callable[[TrialSpec, TrialFolder], TrialRecord]
"""Starts the ranks of a trial once, in a folder, and returns the record of how they ended."""

_POLL_S = 0.2


def run_twice(trial: TrialSpec, folder: TrialFolder, run_id: str, launch: Launch, stop: Stop) -> TrialRecord:
    """Run `trial` until it ends or is made to fail, then resume it from its last checkpoint.

    Raises OSError if a folder cannot be written.
    """
    remove_checkpoints(trial, folder)
    try:
        lacks = _lacks_room(trial, folder)
        if lacks is not None:
            return skipped_record(trial, run_id, "checkpoint_room", lacks, launched_processes(trial))
        first = launch(trial, folder)
        ranks = readable_ranks(folder)
        killed = next((rank for rank in ranks if rank.killed_at_s is not None), None)
        if stop.asked or (killed is None and first.status is not Status.COMPLETED):
            return first
        recovery = _resume(trial, folder, launch, stop, _begun(trial, first, ranks, killed))
        return _both(first, recovery)
    finally:
        if trial.checkpoint is not None and not trial.checkpoint.keep:
            remove_checkpoints(trial, folder)


def remove_checkpoints(trial: TrialSpec, folder: TrialFolder) -> None:
    """Delete the trial's checkpoints."""
    if trial.checkpoint is None:
        return
    with contextlib.suppress(OSError):
        path = checkpoints_folder(trial, folder)
        remove_outside(path) if trial.checkpoint.folder else shutil.rmtree(path)


def _begun(trial: TrialSpec, first: TrialRecord, ranks: Sequence[RankRecord], killed: RankRecord | None) -> Recovery:
    """Facts known before the second launch."""
    fault = None if trial.checkpoint is None else trial.checkpoint.fault
    done = len(plan_steps(trial)) if killed is None or fault is None else fault.step
    return Recovery(
        status=Status.CRASH,
        world_size=resumed_trial(trial).world_size,
        from_step=max((save.step for rank in ranks for save in rank.checkpoints), default=0),
        killed_at_s=None if killed is None else killed.killed_at_s,
        killed_rank=None if killed is None else killed.rank,
        steps_done=done,
        first_ended_at_s=first.ended_at_s or time.time(),
    )


def _resume(trial: TrialSpec, folder: TrialFolder, launch: Launch, stop: Stop, recovery: Recovery) -> Recovery:
    """Load the last complete checkpoint in fresh processes, and run to the end."""
    checkpoint = last(checkpoints_folder(trial, folder))
    if checkpoint is None:
        return recovery.model_copy(update={"reason": "the first launch left no complete checkpoint"})
    resumed = resumed_trial(trial)
    if needs_universal(trial):
        converted = _convert(checkpoint, folder, trial.timeout_s, stop)
        recovery = recovery.model_copy(update=converted.facts)
        if converted.reason is not None:
            return recovery.model_copy(update={"status": Status.CRASH, "reason": converted.reason})
    universal = needs_universal(trial)
    config = build_ds_config(resumed) if uses_deepspeed(resumed) else None
    if config is not None and universal:
        config["checkpoint"] = {**config.get("checkpoint", {}), "load_universal": True}
    lay_out_trial(folder.resumed, resumed, config)
    write_plain(folder.resumed.resume_from, ResumeFrom(checkpoint=checkpoint).model_dump_json())
    second = launch(resumed, folder.resumed)
    position = Position.model_validate_json((checkpoint / "position.json").read_bytes())
    return _ended(recovery, second, position, readable_ranks(folder.resumed))


class _Conversion(NamedTuple):
    """Result of making a universal checkpoint."""

    facts: dict[str, float | int]
    reason: str | None = None


def _convert(checkpoint: Path, folder: TrialFolder, timeout_s: float, stop: Stop) -> _Conversion:
    """Make a universal checkpoint of DeepSpeed's, next to it; stopped if it writes nothing for `timeout_s`."""
    start = time.perf_counter()
    # DeepSpeed injects state that its own engine does not save in that form. One worker per pass: several pickle all of
    # it to each other.
    command = [
        *(str(training_python().python), "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"),
        *("--input_folder", str(checkpoint / ENGINE), "--output_folder", str(checkpoint / UNIVERSAL)),
        *("--num_extract_workers", "1", "--num_merge_workers", "1"),
    ]
    environment = {**os.environ, **training_variables(), MARK: str(folder.path), "DS_ACCELERATOR": "cpu"}
    with (
        (folder.path / "convert.log").open("wb") as log,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        ) as process,
    ):
        quiet, written = Quiet(), 0
        while process.poll() is None:
            before, written = written, _written_bytes(checkpoint) + os.fstat(log.fileno()).st_size
            if written != before:
                quiet.end()
            if stop.asked or quiet.seconds > timeout_s:
                process.kill()
            time.sleep(_POLL_S)
    if process.returncode:
        return _Conversion(
            {}, f"ds_to_universal exited with {process.returncode}: {last_line(folder.path / 'convert.log')}"
        )
    flush_to_disk(checkpoint / UNIVERSAL)
    seconds = time.perf_counter() - start
    return _Conversion({"convert_s": seconds, "converted_bytes": size_bytes(checkpoint / UNIVERSAL)})


def _written_bytes(folder: Path) -> int:
    """Return the bytes of all files under `folder`, some of which may vanish meanwhile."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(where, name).stat().st_size
    return total


def _ended(recovery: Recovery, second: TrialRecord, position: Position, ranks: Sequence[RankRecord]) -> Recovery:
    """Add the second launch's measurements."""
    losses = next((rank.losses for rank in ranks if rank.losses), position.losses)
    ends: dict[int, float] = {}
    for mark in (mark for rank in ranks for mark in rank.marks):
        ends[mark.step_index] = max(mark.end_s, ends.get(mark.step_index, 0.0))
    return recovery.model_copy(
        update={
            "status": second.status,
            "reason": second.reason,
            "from_step": position.step,
            "started_at_s": second.started_at_s,
            "ended_at_s": second.ended_at_s,
            "loads": [rank.checkpoints[0] for rank in ranks if rank.checkpoints],
            "losses": losses,
            "steps_ended_at_s": [end for step, end in sorted(ends.items()) if step >= position.step],
        }
    )


def _both(first: TrialRecord, recovery: Recovery) -> TrialRecord:
    """Return the trial's record: completed if the second launch was, whatever happened to the first."""
    held: dict[str, object] = {"recovery": recovery, "ended_at_s": recovery.ended_at_s or time.time()}
    if recovery.status is Status.COMPLETED:
        return first.model_copy(update={**held, "status": Status.COMPLETED, "reason": None, "failure": None})
    reason = f"resumed from step {recovery.from_step}: {recovery.reason or recovery.status}"
    failure = Failure(message=reason)
    return first.model_copy(update={**held, "status": recovery.status, "reason": reason, "failure": failure})


def _lacks_room(trial: TrialSpec, folder: TrialFolder) -> str | None:
    """Return why the checkpoints do not fit on their disk; None if they do, or if their size is unknown."""
    elements, where = num_parameters(trial.model), checkpoints_folder(trial, folder)
    where.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(where).free
    needed = 0 if elements is None else room_bytes(trial, elements)
    if needed <= free:
        return None
    return f"checkpoint: {where.parent} has {format_bytes(free)} free, needs {format_bytes(needed)}"
