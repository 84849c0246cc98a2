"""Checkpoint saves and loads of one rank within a trial, with time and extra memory; and the intentional fault.

Shared by the ranks of all frameworks: saver and barrier are passed in.

A save is timed from the moment all ranks are ready until the last file of the last rank is on the disk. Only then is
the folder renamed, which makes the checkpoint count, and the previous one deleted: at most two exist. A load is timed
from after the kernel drops the files from its cache until all ranks have loaded.

Memory is the peak of the kernel and the allocator, since most transient memory is no tensor (buffers of pickle, of
writer threads). Resident memory is correct only while malloc is pinned (zerobench.rank.ledger.host); later saves have
no figure.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from zerobench.common.units import counted
from zerobench.config.derived.step_plan import plan_steps
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.rank.ledger.host import peak_resident_bytes, reset_peak_resident, resident_bytes
from zerobench.records.checkpoint_files import (
    Position,
    ResumeFrom,
    checkpoints_folder,
    drop_page_cache,
    flush_to_disk,
    last,
    size_bytes,
    unfinished,
    whole,
)
from zerobench.records.folder import TrialFolder, write_whole
from zerobench.records.progress import Rank
from zerobench.records.records import CheckpointTransfer, Failure, RankRecord


class Saver(Protocol):
    """Saves and loads one rank's part of the training state."""

    def save(self, folder: Path) -> None:
        """Write this rank's part into `folder`, which exists and is empty."""

    def load(self, folder: Path) -> None:
        """Continue from the files of all ranks."""


class Peers(Protocol):
    """The other ranks, and the device of this one."""

    def barrier(self) -> None:
        """Wait for all ranks."""

    def synchronize(self) -> None:
        """Wait until the device has finished its work."""

    def start_device_peak(self) -> int | None:
        """Reset the device's peak; return the bytes allocated now, None on a CPU."""

    def device_peak(self) -> int | None:
        """Most bytes allocated on the device since then."""


class Checkpoints:
    """Saves, loads and intentional death of this rank; does nothing if the trial has no checkpoint."""

    is_malloc_pinned = True
    """True while resident memory is correct; set to False when malloc is unpinned."""

    def __init__(self, trial: TrialSpec, folder: TrialFolder, rank: Rank, peers: Peers, record: RankRecord) -> None:
        self._asked = trial.checkpoint if trial.evidence is Evidence.MEASURED else None
        self._num_steps = len(plan_steps(trial))
        self._folder = folder
        self._base = checkpoints_folder(trial, folder)
        self._rank = rank
        self._peers = peers
        self._record = record
        resume = folder.resume_from
        self._from = ResumeFrom.model_validate_json(resume.read_bytes()).checkpoint if resume.exists() else None
        self.position = Position(step=0, losses=[])
        """Progress of the training before this launch."""

    def is_due(self, step: int) -> bool:
        """True if all ranks save after `step` steps. A second launch saves nothing more."""
        if self._asked is None or self._from is not None:
            return False
        return step % self._asked.every_steps == 0 and step < self._num_steps

    def save(self, saver: Saver, step: int, losses: list[float]) -> None:
        """Save after `step` steps; `losses` are the global ones of all of them."""
        part = unfinished(self._base, step)
        if self._is_first:
            part.mkdir(parents=True)
        with self._timed("save", step, part):
            saver.save(part)
            self._own_s = self._seconds()
            self._peers.barrier()
            if self._rank.local_rank == 0:
                flush_to_disk(part)
        self._peers.barrier()  # all ranks have measured the files before the folder is renamed
        if self._is_first:
            self._put_in_place(part, Position(step=step, losses=losses))
        self._peers.barrier()

    def load(self, saver: Saver) -> None:
        """In a second launch, continue from the checkpoint of the first."""
        if self._from is None:
            return
        dropped = drop_page_cache(self._from) if self._rank.local_rank == 0 else None
        self.position = Position.model_validate_json((self._from / "position.json").read_bytes())
        with self._timed("load", self.position.step, self._from):
            saver.load(self._from)
            self._own_s = self._seconds()
        self._record.checkpoints[-1].page_cache_dropped = dropped

    def die_if_due(self, step: int, last_words: Callable[[], None]) -> None:
        """If the trial asks for it, write the record and end this rank with SIGKILL after `step` steps."""
        fault = None if self._asked is None or self._from is not None else self._asked.fault
        if fault is None or (fault.rank, fault.step) != (self._rank.rank, step):
            return
        last_words()
        self._record.killed_at_s = time.time()
        self._record.failure = Failure(
            rank=self._rank.rank,
            step_index=step,
            message=f"rank {self._rank.rank} was killed on purpose after {counted(step, 'step')} (checkpoint.fault)",
        )
        write_whole(self._folder.rank_record(self._rank.rank), self._record.model_dump_json())
        os.kill(os.getpid(), signal.SIGKILL)

    @property
    def _is_first(self) -> bool:
        return self._rank.rank == 0

    def _seconds(self) -> float:
        self._peers.synchronize()
        return time.perf_counter() - self._start

    @contextmanager
    def _timed(self, kind: str, step: int, folder: Path) -> Iterator[None]:
        """Record a save or load by all ranks: seconds, bytes, peaks."""
        self._peers.synchronize()
        self._peers.barrier()
        has_peak = self.is_malloc_pinned and reset_peak_resident()
        on_gpu = self._peers.start_device_peak()
        rss, start_s = resident_bytes(), time.time()
        self._start = time.perf_counter()
        yield
        self._peers.barrier()
        seconds = self._seconds()
        self._record.checkpoints.append(
            CheckpointTransfer(
                kind=kind,
                step=step,
                start_s=start_s,
                seconds=seconds,
                own_s=self._own_s,
                size_bytes=size_bytes(folder),
                rss_before_bytes=rss if has_peak else None,
                rss_peak_bytes=_peak_resident_since(rss) if has_peak else None,
                device_before_bytes=on_gpu,
                device_peak_bytes=self._peers.device_peak(),
            )
        )

    def _put_in_place(self, part: Path, position: Position) -> None:
        """Rename the new checkpoint as complete, then delete the previous one."""
        before = last(self._base)
        write_whole(part / "position.json", position.model_dump_json())
        part.rename(whole(self._base, position.step))
        if before is not None:
            shutil.rmtree(before)


def _peak_resident_since(start_bytes: int) -> int | None:
    """Largest resident size since it was `start_bytes`.

    Linux sums its per-CPU page counters exactly for the current size but not for the peak
    (percpu_counter_read_positive): a phase that only frees may have a peak a few pages below its start.
    """
    peak = peak_resident_bytes()
    return None if peak is None else max(peak, start_bytes)
