"""The ledger in a user's own DeepSpeed engine: memory by category in a few steps, and the times of a few others.

    with zerobench.track(engine):
        for batch in loader:
            loss = engine(**batch).loss
            engine.backward(loss)
            engine.step()

Steps are counted from the call on: the first one under the ledger, warm-up, one under the ledger again (steady state),
warm-up, and a few that are timed with no ledger on. A step under the ledger takes several times as long as another; as
soon as the last of those is done its records are written, and once more when all are done; then the engine is as it was
before, so that a run of weeks pays for one minute. What is measured is the user's: malloc is not pinned, tensors that
the loop keeps alive stay alive, and what the loop does between forward and backward counts to the forward phase.
"""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self

import torch

from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Phase, Status
from zerobench.config.derived.step_plan import step_kinds
from zerobench.config.trial.base import validated
from zerobench.config.trial.trial import StepsSpec, TrialSpec
from zerobench.launch.tracking.agreement import Agreement, agree, this_rank
from zerobench.launch.tracking.compilations import guard_compilations
from zerobench.launch.tracking.rank_records import TrackedRank, make_folder, write_records
from zerobench.launch.tracking.step_phases import StepPhases
from zerobench.launch.tracking.work import EngineWork, Work
from zerobench.rank.ledger.device import describe_device
from zerobench.rank.ledger.failures import describe
from zerobench.rank.ledger.held import REFUSED, Holdings
from zerobench.rank.ledger.host import resident_bytes
from zerobench.rank.ledger.recorder import NvmeAccount
from zerobench.rank.ledger.script_order import ScriptOrder
from zerobench.rank.ledger.storages import StorageCounter, tensors_in
from zerobench.records.progress import ProgressFile
from zerobench.records.records import HostStanding

Arguments = ParamSpec("Arguments")

guard_compilations()  # with the import: engines compile before they are tracked


def track(
    engine: Any,
    *,
    name: str | None = None,
    reports: str | Path = "reports",
    warmup: int = 2,
    memory: int = 1,
    timed: int = 5,
) -> Tracker:
    """Begin to track a DeepSpeed engine; call it on every rank, after `deepspeed.initialize`.

    Use it as a context around the training loop, or keep the returned tracker: records are written once the tracked
    steps are done, or when the context or the process ends earlier. The run is `<name>_<time>` under `reports`; `name`
    defaults to the script's; inside `zerobench watch` it is the watcher's run. `warmup`, `memory` and `timed` are
    numbers of optimizer steps (zerobench.config.trial.trial.StepsSpec).

    Raises UserError if `engine` is not a DeepSpeed engine, a number of steps is invalid, or the run's folder cannot be
    written.
    """
    if not all(hasattr(engine, method) for method in ("backward", "step", "is_gradient_accumulation_boundary")):
        raise UserError(
            f"engine: {type(engine).__name__} is not a DeepSpeed engine; give the engine from deepspeed.initialize"
        )
    steps = validated(StepsSpec, {"warmup": warmup, "memory": memory, "timed": timed}, "track")
    work = EngineWork(engine)
    script = Path(os.fspath(sys.argv[0] if sys.argv else "")).stem or "script"
    trial = work.trial(name or script, steps, None)
    agreed = agree(this_rank(), lambda: make_folder(Path(reports), trial))
    return Tracker(work, trial, agreed, step_kinds(steps, is_fresh=not work.has_stepped))


def _harmless(method: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Let a fault of the tracker's own end the tracking, never the training."""

    @wraps(method)
    def guarded(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        tracker: Any = args[0]
        if tracker.done:  # somebody kept a wrapped method
            return
        try:
            method(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the user's training goes on
            tracker._give_up(error)  # noqa: SLF001 -- its own

    return guarded


class Tracker:
    """One training while it is tracked; receives its calls (engine_hooks.Listener).

    `kinds` are the purposes of its steps (zerobench.config.derived.step_plan.step_kinds). `in_own_process` is True if
    the kernel's figures for this process are the training's, which they are not for emulated memory. `nvme` makes the
    account of swapped tensors. `order` records what a steady step issues.
    """

    def __init__(
        self,
        work: Work,
        trial: TrialSpec,
        agreed: Agreement,
        kinds: list[str],
        *,
        in_own_process: bool = True,
        nvme: Callable[[str | None, int], NvmeAccount] = NvmeAccount,
        order: ScriptOrder | None = None,
    ) -> None:
        self._rank = this_rank()
        self._work = work
        self._finished = False
        self.folder = agreed.folder
        self._tracked = TrackedRank.begin(agreed, self._rank, work, trial)
        self._progress = ProgressFile(self.folder, self._rank, len(kinds))
        self._device = describe_device(work.device)
        self._device.held = self.held
        if in_own_process:  # where it is not, who plays the rank keeps one
            self._device.snapshot = self.folder.memory_snapshot(self._rank.rank)
        self._device.watch_refusals()
        self._steps = StepPhases(
            self._device,
            work.module,
            work.walk,
            nvme(self._tracked.swap_folder, self._rank.rank),
            kinds,
            in_own_process=in_own_process,
            order=order,
        )
        self._steps.ledger.tell_host = self._progress.tell_host
        if in_own_process:  # where it is not, the memory that was refused is not that of the training
            self._device.host_standing = self._host_standing
        self._hooks = work.hooks(self)
        self._hooks.install()
        atexit.register(self._close_at_exit)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)

    @property
    def done(self) -> bool:
        """True if the records are written and the engine is restored."""
        return self._finished

    @_harmless
    def step(self) -> None:
        """Mark the end of an optimizer step if the engine cannot: its own `step()` marks it anyway."""
        if self._finished or not self._steps.is_open:
            return
        self._tracked.look_at(self._work)  # the script may delete it before the records are written
        self._steps.close()
        if self._steps.is_over:
            self._finish()
        elif self._steps.ledger_is_done:
            self._write(is_last=False)

    @_harmless
    def close(self, error: BaseException | None = None) -> None:
        """End the tracking and write the results so far; a second call does nothing. `error`: what ended the loop."""
        if self._finished:
            return
        if error is not None:
            self.failed(error)
            return
        steps = self._steps
        steps.drop(None)
        self._tracked.notes.append(
            f"the training ended after {steps.index} of {len(steps.kinds)} tracked steps: figures of these only"
        )
        self._finish()

    @_harmless
    def look_back(self, at_start: StorageCounter | None = None) -> None:
        """Account for start-up, from the allocator's history of it; `at_start` is the counter that watched it."""
        self._steps.look_back(at_start)

    def held(self) -> Holdings | None:
        """Return the live tensors on the device; None outside a step under the ledger."""
        if self._finished or not self._steps.under_ledger:
            return None
        return self._steps.ledger.held(self._steps.phase or Phase.INIT)

    def _host_standing(self) -> HostStanding | None:
        return self._steps.ledger.host_standing(self._steps.phase or Phase.INIT, REFUSED)

    @property
    def position(self) -> str:
        """The training's position, for a sentence."""
        if self._finished:
            return "after the tracked steps"
        steps = self._steps
        at = f"step {steps.index + 1}"
        return at if steps.phase is None else f"the {steps.phase} phase of {at}"

    # What the engine's calls tell.

    @_harmless
    def forward_begins(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Begin a micro-step, and with the first one the step."""
        if not torch.is_grad_enabled():
            return
        steps = self._steps
        if not steps.is_open:
            self._progress.say(steps.kind, steps.index, self._device.memory_bytes() or resident_bytes())
            steps.open()
        tensors = list(tensors_in([args, kwargs]))
        self._tracked.note_batch(tensors)  # of timed steps too: their tokens a second count by it
        if steps.under_ledger:
            steps.ledger.name_inputs(tensors)
        steps.sites.after_forward = False
        steps.enter(Phase.FORWARD)

    @_harmless
    def forward_ended(self, output: Any) -> None:
        """Mark the loss, computed between here and the backward pass."""
        if self._steps.under_ledger and self._steps.phase is Phase.FORWARD:
            self._steps.ledger.name_kept(_kept(output))
            # A loss outside the model is computed from a tensor, or from a transformers output without a loss.
            inner = getattr(output, "logits", None)
            has_loss = getattr(output, "loss", None) is not None
            logits = inner if isinstance(inner, torch.Tensor) and not has_loss else output
            if isinstance(logits, torch.Tensor) and logits.dim() > 1:
                self._steps.ledger.name_logits(logits)
            self._steps.sites.after_forward = True

    @_harmless
    def backward_begins(self, loss: Any) -> None:
        """End the forward phase."""
        self._steps.sites.after_forward = False
        if self._steps.under_ledger and isinstance(loss, torch.Tensor):
            self._steps.memory.mark_loss(loss)
        if self._steps.is_open:
            self._steps.enter(Phase.BACKWARD)

    @_harmless
    def backward_ended(self) -> None:
        """Leave the backward phase: until the next micro-step or the update there is none."""
        self._steps.leave()

    @_harmless
    def step_begins(self) -> None:
        """Begin the update; without an observed backward pass, the phases cannot be told apart."""
        if self._steps.phase is Phase.FORWARD:
            self._tracked.note_once(
                "loss.backward() was called instead of engine.backward(): its pass counts as forward"
            )
        self._steps.sites.after_forward = False
        if self._steps.is_open:
            self._steps.enter(Phase.STEP)

    @_harmless
    def step_ended(self) -> None:
        """End the optimizer step."""
        self.step()

    @_harmless
    def failed(self, error: BaseException) -> None:
        """Record the failure of the loop and detach; if it goes on, it does so untracked."""
        status, self._tracked.failure = describe(
            error, self._steps.marks, self._rank.rank, self._device, between_calls=self._steps.phase is None
        )
        self._tracked.status = Status.INTERRUPTED if isinstance(error, KeyboardInterrupt) else status
        self._steps.drop(error)
        self._finish()

    # The end.

    def _give_up(self, error: Exception) -> None:
        """Record a fault of the tracker itself, and let the training go on without it."""
        self._tracked.notes.append(f"the tracker failed and detached from the engine: {type(error).__name__}: {error}")
        try:
            self._steps.drop(error)
        except Exception as second:  # noqa: BLE001 -- the engine must be let go of whatever happens
            self._tracked.notes.append(f"and again while detaching: {type(second).__name__}: {second}")
        self._finish()

    def _finish(self) -> None:
        """Restore the engine, write the records, and release everything."""
        self._finished = True
        self._hooks.restore()
        atexit.unregister(self._close_at_exit)
        self._write(is_last=True)
        del self._work, self._steps, self._hooks, self._tracked

    def _write(self, *, is_last: bool) -> None:
        """Write the records; before the last ones too, so that a killed process leaves its ledger."""
        try:
            if is_last:
                self._progress.say("done", len(self._steps.kinds), always=True)
            self._tracked.take(self._steps)
            write_records(self._tracked, self._work, self._device, is_last=is_last)
        except Exception as error:  # noqa: BLE001 -- a full disk is no reason to end a training
            warnings.warn(f"zerobench could not write its records to {self.folder.path}: {error}", stacklevel=2)

    def _close_at_exit(self) -> None:
        """Close at the end of the process, before the tracked steps were done; an exception that ended it is the
        reason.
        """
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        self.close(error if isinstance(error, BaseException) else None)


def _kept(output: Any) -> list[torch.Tensor]:
    """Return the rest of a transformers output, besides loss and logits: keys and values, hidden states."""
    if not isinstance(output, Mapping):
        return []
    return [tensor for name, part in output.items() if name not in ("loss", "logits") for tensor in _within(part)]


def _within(value: Any, depth: int = 5) -> list[torch.Tensor]:
    """Return the tensors in nested collections and plain objects, such as a cache's layers."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, list | tuple):
        parts = list(value)
    else:
        parts = [] if isinstance(value, type) else list(getattr(value, "__dict__", {}).values())
    return [tensor for part in parts for tensor in _within(part, depth - 1)] if depth else []
