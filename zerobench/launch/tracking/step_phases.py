"""Steps and phases of a tracked engine: under the ledger, timed, or passed over.

A step begins with its first forward pass and a phase lasts until the next one begins, in engine calls made by the
user's loop; so contexts are entered in one call and left in another.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch

from zerobench.common.vocabulary import Phase, StepKind
from zerobench.config.derived.step_plan import UNDER_LEDGER, leads_to_memory
from zerobench.rank.ledger.device import Device
from zerobench.rank.ledger.engine_tensors import NamedTensor
from zerobench.rank.ledger.ledger import Ledger
from zerobench.rank.ledger.model_sites import ModelSites
from zerobench.rank.ledger.recorder import (
    DeviceRows,
    Marks,
    MemoryPhases,
    NvmeAccount,
    PlainPhases,
    TimedPhases,
    settle_collectives,
)
from zerobench.rank.ledger.script_order import ScriptOrder
from zerobench.rank.ledger.storages import StorageCounter
from zerobench.rank.ledger.traffic import Traffic
from zerobench.rank.nvml.nvml import DeviceReader
from zerobench.records.records import StepTime


class StepPhases:
    """Position of a tracked engine, and its results so far."""

    def __init__(
        self,
        device: Device,
        module: torch.nn.Module,
        walk: Callable[[], Iterable[NamedTensor]],
        nvme: NvmeAccount,
        kinds: list[str],
        *,
        in_own_process: bool = True,
        order: ScriptOrder | None = None,
    ) -> None:
        """`order` records what a steady step issues; None: nobody does."""
        self.kinds = kinds
        self.index = 0
        self.is_open = False
        self.step_times: list[StepTime] = []
        self.marks = Marks()
        self.nvme = nvme
        self.sites = ModelSites(module)
        self.order = order
        self.ledger = Ledger(
            device.torch_device,
            walk,
            StorageCounter if order is None else order.counter,
            in_own_process=in_own_process,
            sites=self.sites,
        )
        self.rows = DeviceRows(device, DeviceReader.open(device.uuid)) if device.is_cuda else None
        self._module = weakref.ref(module)
        self._traffic = Traffic() if order is None else order.traffic
        self.memory = MemoryPhases(self.ledger, device, self.marks, nvme, self._traffic, self.rows, settle_collectives)
        self._timed = TimedPhases(device, self.marks)
        self._phases = {"timed": self._timed.phase, "warmup": PlainPhases(self.marks).phase}
        self._step = ExitStack()
        self._in_phase: tuple[Phase, AbstractContextManager[None]] | None = None

    @property
    def kind(self) -> str:
        """Purpose of the current step."""
        return self.kinds[self.index]

    @property
    def under_ledger(self) -> bool:
        """True if the current step is under the ledger."""
        return self.is_open and self.kind in UNDER_LEDGER

    @property
    def phase(self) -> Phase | None:
        """The current phase; None between phases."""
        return None if self._in_phase is None else self._in_phase[0]

    @property
    def is_over(self) -> bool:
        """True if all steps are done."""
        return self.index == len(self.kinds)

    @property
    def ledger_is_done(self) -> bool:
        """True if the step that has just ended was the last one under the ledger."""
        under = [kind in UNDER_LEDGER for kind in self.kinds]
        return self.index > 0 and under[self.index - 1] and not any(under[self.index :])

    def look_back(self, at_start: StorageCounter | None) -> None:
        """Account for start-up afterwards, from the allocator's history of it (Ledger.look_back).

        `at_start` is the counter that watched it, as far as Python could.
        """
        if at_start is not None:
            self.ledger.inherit_births(at_start)
        self.ledger.look_back(StepKind.FIRST, Phase.INIT)
        if self.rows is not None:
            self.rows.note(StepKind.FIRST, Phase.INIT, self.ledger.peak_occupied_bytes)

    def open(self) -> None:
        self.marks.step_index, self.marks.kind = self.index, self.kind
        self.is_open = True
        if self.under_ledger:
            self.memory.kind = UNDER_LEDGER[self.kind]
            if self.memory.kind is not StepKind.FIRST:  # of which start-up is a part, and which comes once
                for account in (self.ledger, self._traffic, self.nvme):
                    account.forget(self.memory.kind)
            settle_collectives()
            self._step.enter_context(self.ledger.tracking(self._module()))
            if self.order is not None and self.memory.kind is StepKind.STEADY:
                self._step.enter_context(self.order.listening())
        elif leads_to_memory(self.kinds, self.index):
            self._step.enter_context(self.ledger.watching(self._module()))
        elif self.kind == "timed":
            self.ledger.rest()
            self._step.enter_context(self._timed.step(self.step_times))

    def close(self) -> None:
        """End the current step."""
        self.leave()
        self._traffic.is_between = False
        self._step.close()
        self.is_open = False
        self.index += 1
        if self.is_over:
            self.ledger.rest()

    def enter(self, phase: Phase) -> None:
        """Begin a phase, ending the one before; nothing if it is the current one."""
        if self.phase is phase:
            return
        self.leave()
        self._traffic.is_between = False
        context = self._phases.get(self.kind, self.memory.phase)(phase)
        context.__enter__()
        self._in_phase = (phase, context)

    def leave(self) -> None:
        """End the current phase, if any."""
        if self._in_phase is not None:
            context, self._in_phase = self._in_phase[1], None
            context.__exit__(None, None, None)
            # Gradients are clipped and unscaled here: it belongs to the step's order, and to no phase's bytes.
            self._traffic.is_between = self.under_ledger and self.memory.kind is StepKind.STEADY

    def drop(self, error: BaseException | None) -> None:
        """Leave an unfinished step."""
        # Nothing of the last phase is accounted for: its end was not seen.
        error = error or GeneratorExit()
        details: Any = (type(error), error, error.__traceback__)
        if self._in_phase is not None:
            context, self._in_phase = self._in_phase[1], None
            context.__exit__(*details)
        self._step.__exit__(*details)
        self.ledger.rest()
        self.is_open = False
