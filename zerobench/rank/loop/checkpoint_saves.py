"""Saves and loads of one rank within a trial: when, how long, with how much more memory; and the fault on purpose.

One for ranks of every framework: who is to save, and how ranks wait for each other, is handed in.

A save is timed from the moment all ranks are ready to the moment the last file of the last rank is on the disk, and
counts only then: the folder is renamed. The one before is deleted after that, so two lie there at most. A load is
timed after the kernel was asked to forget the files, until all ranks have what they need.

Memory is the kernel's and the allocator's peak within it, since most of what is held for a moment is no tensor (buffers
of pickle, of writers' threads). Resident memory tells the truth only while malloc is pinned
(zerobench.rank.ledger.host): of saves after that there is none.
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
    """What is saved and loaded: each rank's part in the training."""

    def save(self, folder: Path) -> None:
        """Write this rank's part into `folder`, which is there and empty."""

    def load(self, folder: Path) -> None:
        """Go on from what all ranks wrote."""


class Peers(Protocol):
    """The other ranks, and the device of this one."""

    def barrier(self) -> None:
        """Wait until all ranks have come here."""

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""

    def start_device_peak(self) -> int | None:
        """What is allocated on the device now, from where its peak is counted anew; None on a CPU."""

    def device_peak(self) -> int | None:
        """The most that was allocated on it since."""


class Checkpoints:
    """What this rank saves, loads and dies of. Without a checkpoint in the trial, nothing."""

    is_malloc_pinned = True
    """Whether resident memory tells the truth; whoever lets malloc loose says so."""

    def __init__(self, trial: TrialSpec, folder: TrialFolder, rank: Rank, peers: Peers, record: RankRecord) -> None:
        self._asked = trial.checkpoint if trial.evidence is Evidence.MEASURED else None
        self._num_steps = len(plan_steps(trial))
        self._folder = folder
        self._base = checkpoints_folder(trial, folder)
        self._rank = rank
        self._peers = peers
        self._record = record
        self._from = _resume_from(folder)
        self.position = Position(step=0, losses=[])
        """What had been done before this launch."""

    def is_due(self, step: int) -> bool:
        """Whether all ranks save now that `step` steps are done. A second launch saves nothing more."""
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
        self._peers.barrier()  # all have looked at the files where they lie
        if self._is_first:
            self._put_in_place(part, Position(step=step, losses=losses))
        self._peers.barrier()

    def load(self, saver: Saver) -> None:
        """Where this is a second launch, go on from the first one's checkpoint."""
        if self._from is None:
            return
        dropped = drop_page_cache(self._from) if self._rank.local_rank == 0 else None
        self.position = Position.model_validate_json((self._from / "position.json").read_bytes())
        with self._timed("load", self.position.step, self._from):
            saver.load(self._from)
            self._own_s = self._seconds()
        self._record.checkpoints[-1].page_cache_dropped = dropped

    def die_if_due(self, step: int, last_words: Callable[[], None]) -> None:
        """Where the trial asks for it, end this rank by SIGKILL with `step` steps done, its record written before."""
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
        """Account for a save or a load by all ranks: seconds, bytes, peaks."""
        self._peers.synchronize()
        self._peers.barrier()
        tells = self.is_malloc_pinned and reset_peak_resident()
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
                rss_before_bytes=rss if tells else None,
                rss_peak_bytes=_peak_resident_since(rss) if tells else None,
                device_before_bytes=on_gpu,
                device_peak_bytes=self._peers.device_peak(),
            )
        )

    def _put_in_place(self, part: Path, position: Position) -> None:
        """Name the new checkpoint as one that is whole, then delete the one before."""
        before = last(self._base)
        write_whole(part / "position.json", position.model_dump_json())
        part.rename(whole(self._base, position.step))
        if before is not None:
            shutil.rmtree(before)


def _resume_from(folder: TrialFolder) -> Path | None:
    path = folder.resume_from
    return ResumeFrom.model_validate_json(path.read_bytes()).checkpoint if path.exists() else None


def _peak_resident_since(start_bytes: int) -> int | None:
    """The largest resident size since it was `start_bytes`.

    Linux counts pages per CPU and adds them up exactly where it tells the present size, but not where it keeps the
    largest (percpu_counter_read_positive): a phase that only frees may have a peak pages below its start.
    """
    peak = peak_resident_bytes()
    return None if peak is None else max(peak, start_bytes)
