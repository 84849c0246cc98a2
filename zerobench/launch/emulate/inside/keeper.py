"""Keeps the account of what this process's device holds, from start to end, whoever else resets torch's counters."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from zerobench.common.vocabulary import Phase
from zerobench.emulator.inside.account import managed_bytes, uncounted_workspaces, unmanaged_bytes
from zerobench.launch.emulate.part import Account, Part, Refusal
from zerobench.rank.ledger.allocator_snapshot import peak_occupied, snapshot_of
from zerobench.rank.ledger.device_peaks import PHASE, DevicePeaks, intercept_resets
from zerobench.rank.ledger.held import Holdings, standing
from zerobench.rank.ledger.ledger import Ledger
from zerobench.records.folder import write_whole

AskHeld = Callable[[], tuple[Holdings, str]]
"""What tensors hold now, and where the training is."""

_HISTORY_ENTRIES = 1_000_000
_COUNTED_ENTRIES = 400_000
"""Where bytes are only counted, and the whole run is looked at when it ends: 160 MB of Python's. A longer history
does not reach back to its start, and what is held is then told as at most so much (allocator_snapshot.py).
"""


class Keeper:
    """The account of one rank; begins to count with CUDA, not before."""

    def __init__(self, part: Part, account: Account) -> None:
        self.account = account
        self.held: AskHeld | None = None
        """Asked at a refusal; by default what the garbage collector reaches."""
        self._part = part
        self._peaks = DevicePeaks()

    def begin(self) -> None:
        """Torch is there: see every reset of its peaks coming, and be told when CUDA begins."""
        intercept_resets(self._look)
        self._peaks.watch()
        PHASE.watch()  # start-up, which the ledger looks back on
        torch.cuda._lazy_call(self._cuda_begins)

    def training_begins(self) -> None:
        """The first forward pass is about to begin: what was held at most before is start-up's."""
        if torch.cuda.is_initialized():
            self._look()
            self.account.start_peak_bytes = self._peaks.largest("allocated_bytes.all")
            self.account.peak_bytes, self.account.peak_step = self.account.start_peak_bytes, 0

    def step_ended(self) -> None:
        """One more step; communicators that were made in it may be gone when the script ends."""
        self.account.num_steps += 1
        if torch.cuda.is_initialized():
            self._look()
            self._note_peak(self.account.num_steps)

    def end(self) -> None:
        """Take down the last figures and write the account."""
        account = self.account
        if torch.cuda.is_initialized():
            self._look()
            self._note_peak(None)
            account.reserved_bytes = self._peaks.largest("reserved_bytes.all")
            account.touched_device = account.reserved_bytes > 0
            if not self._part.under_ledger:
                # By the history of the whole run, which without a ledger is one phase.
                devices = range(torch.cuda.device_count())
                account.occupied_bytes = max(peak_occupied(*snapshot_of(i), self._peaks.stats(i)) for i in devices)
            account.alloc_retries = torch.cuda.memory_stats().get("num_alloc_retries", 0)
            account.pinned_bytes = torch.cuda.host_memory_stats().get("allocated_bytes.peak")
            if uncounted := uncounted_workspaces():
                kinds = " and ".join(uncounted)
                account.notes.append(f"cuDNN's workspace for {kinds} is not counted: a GPU needs more")
        self.write()

    def _note_peak(self, step: int | None) -> None:
        """Take down the largest peak so far; `step` ran since the last look, None for what is no whole step."""
        peak_bytes = self._peaks.largest("allocated_bytes.all")
        if self.account.peak_bytes is None or peak_bytes > self.account.peak_bytes:
            self.account.peak_bytes, self.account.peak_step = peak_bytes, step

    def write(self) -> None:
        """Put the account where it is waited for."""
        write_whole(self._part.account, self.account.model_dump_json(indent=1))

    def snapshot_begins(self) -> None:
        """From now on the allocator keeps who asked for what, by Python's stacks."""
        if self._part.snapshot is not None and torch.cuda.is_initialized():
            torch.cuda.memory._record_memory_history(
                enabled="all", context="all", stacks="python", max_entries=_HISTORY_ENTRIES
            )

    def dump_snapshot(self) -> None:
        """Write torch's snapshot; a full disk is no reason to end a script."""
        if self._part.snapshot is None or not torch.cuda.is_initialized():
            return
        try:
            torch.cuda.memory._dump_snapshot(str(self._part.snapshot))
        except OSError as error:
            self.account.notes.append(f"torch's memory snapshot could not be written: {error}")

    def _look(self) -> None:
        """Take over what the driver says beside torch's peaks."""
        _, self.account.total_bytes = torch.cuda.mem_get_info()
        self.account.managed_bytes = max(self.account.managed_bytes, managed_bytes())
        outside = unmanaged_bytes() - torch.cuda.memory_reserved()
        self.account.outside_bytes = max(self.account.outside_bytes or 0, outside)

    def _cuda_begins(self) -> None:
        entries = _HISTORY_ENTRIES if self._part.under_ledger else _COUNTED_ENTRIES
        torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=entries)
        torch._C._cuda_attach_out_of_memory_observer(self._refused)  # type: ignore[attr-defined] # absent from the CPU build

    def _refused(self, device: int, asked: int, _total: int, free: int) -> None:
        try:
            held, during = self.held() if self.held else (self.reachable(), "start-up")
        except Exception as error:  # noqa: BLE001 -- torch is about to say what matters
            warnings.warn(f"zerobench could not list what is allocated: {error}", stacklevel=2)
            held, during = None, "training"
        now = standing(torch.device("cuda", device), held)
        self.account.refusal = Refusal(bytes_asked=int(asked), bytes_free=int(free), standing=now, during=during)
        if self.account.touched_device is False:
            self.account.touched_device = now.reserved_bytes > 0

    def reachable(self) -> Holdings:
        """What the tensors hold that the garbage collector reaches, named by whose they are."""
        from zerobench.rank.ledger.reachable import walk_reachable

        device = torch.device("cuda", torch.cuda.current_device())
        return Ledger(device, walk_reachable, in_own_process=False).held(Phase.INIT)
