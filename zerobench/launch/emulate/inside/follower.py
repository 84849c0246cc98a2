"""Follows the training in a user's script: finds it, lets a tracker watch, counts its steps, ends it.

It hears of the training's calls (engine_hooks.Listener) and hands them on to the tracker, where there is one.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import wraps
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch.nn.parallel import DistributedDataParallel

from zerobench.config.trial.trial import StepsSpec
from zerobench.emulator.gpu import BOUNDLESS
from zerobench.emulator.inside import kernels
from zerobench.launch.emulate.inside.keeper import Keeper
from zerobench.launch.emulate.inside.loop_hooks import LoopHooks
from zerobench.launch.emulate.inside.works import EmulatedEngine, EmulatedLoop
from zerobench.launch.emulate.part import Part
from zerobench.launch.tracking.agreement import Agreement
from zerobench.launch.tracking.engine_hooks import Listener
from zerobench.launch.tracking.tracker import Tracker
from zerobench.launch.tracking.work import Work
from zerobench.rank.ledger.held import Holdings
from zerobench.rank.ledger.recorder import NvmeAccount
from zerobench.rank.ledger.script_order import ScriptOrder
from zerobench.rank.ledger.sites import SiteFinder
from zerobench.rank.ledger.storages import StorageCounter
from zerobench.records.folder import TRIAL_VARIABLE, TrialFolder

_END = signal.SIGRTMAX - 3
"""By which a training in another thread ends the main one: no library is known to use it."""


class AllStepsPlayed(SystemExit):
    """All steps that were asked for are done: the script ends, its exit hooks run."""


class Follower:
    """The training of one process."""

    def __init__(self, part: Part, keeper: Keeper) -> None:
        self._part = part
        self._keeper = keeper
        self._has_engine = False
        self._tracker: Tracker | None = None
        self._at_start: StorageCounter | None = None
        """Who looked on while `deepspeed.initialize` made the engine, or DDP its buckets."""
        self._is_open = False
        self._steps = part.steps
        self._loops = LoopHooks(self._loop)
        keeper.held = self._held

    def install(self) -> None:
        """Look on at loops of torch's from now on."""
        self._loops.install()
        if self._part.under_ledger:
            self._look_on_at_ddp()
        if threading.current_thread() is threading.main_thread():
            signal.signal(_END, _end_main)

    def _look_on_at_ddp(self) -> None:
        """DDP's reducer makes its first buckets in C++, where nobody reaches them later."""
        ddp: Any = DistributedDataParallel
        make = ddp.__init__

        @wraps(make)
        def made(*args: Any, **kwargs: Any) -> None:
            self._at_start = self._at_start or StorageCounter(SiteFinder())
            with self._at_start:
                make(*args, **kwargs)

        ddp.__init__ = made

    def follow_deepspeed(self, deepspeed: ModuleType) -> None:
        """Give DeepSpeed kernels that need no compiler, and watch the engine that its `initialize` gives."""
        kernels.install()
        # Ranks make sure of each other by what rank 0 sends, which is what this one has.
        checks: Any = import_module("deepspeed.runtime.zero.utils")
        checks.assert_lst_len_same_as_other_ranks = lambda _: None
        checks.get_lst_from_rank0 = list
        if self._part.under_ledger:
            self._leave_uncompiled(import_module("deepspeed.runtime.engine").DeepSpeedEngine)
        initialize = deepspeed.initialize

        @wraps(initialize)
        def initialized(*args: Any, **kwargs: Any) -> Any:
            if not self._has_engine and self._part.under_ledger:
                self._at_start = StorageCounter(SiteFinder())
            with nullcontext() if self._at_start is None else self._at_start:
                given = initialize(*args, **kwargs)
            self._begin_engine(given[0])
            return given

        deepspeed.initialize = initialized  # type: ignore[attr-defined] # a module of somebody else's

    def _leave_uncompiled(self, engines: Any) -> None:
        """DeepCompile takes the engine's own gathers away and puts others into graphs, which the ledger has none of."""
        compiling = engines.compile

        @wraps(compiling)
        def compiled(engine: Any, *args: Any, **kwargs: Any) -> None:
            if engine._config.compile_config.deepcompile:
                self._keeper.account.compiles = self._keeper.account.deepcompiles = True
            else:
                compiling(engine, *args, **kwargs)

        engines.compile = compiled

    def _begin_engine(self, engine: Any) -> None:
        if self._has_engine or self._keeper.account.tracked is not None:
            self._keeper.account.notes.append("several trainings in one process: only the first was tracked")
            return
        self._has_engine = True
        # AutoTP compares the first batch with its peers' on the device, where nothing is compared.
        check = getattr(engine, "first_dataloader_check", None)
        if check is not None:
            check.remove()
        work = EmulatedEngine(engine, self._part)
        self._begin(work, "deepspeed.initialize")
        work.heard_by(self).install()

    def _loop(self, module: torch.nn.Module) -> Listener | None:
        if self._has_engine:
            return None
        if not torch.cuda.is_initialized():
            self._keeper.account.tracked = "a loop on the CPU"
            return self
        work = EmulatedLoop(module, self._part)
        names = {"ddp": "DistributedDataParallel", "fsdp": "FSDP"}
        self._begin(work, names.get(work.strategy, "a torch loop"))
        return self

    def _begin(self, work: Work, what: str) -> None:
        self._keeper.training_begins()
        self._keeper.account.tracked = what
        if not self._part.under_ledger:
            return
        part = self._part
        folder = TrialFolder(Path(os.environ[TRIAL_VARIABLE]))
        agreed = Agreement(folder, part.ranks_per_node, part.node, is_first_of_node=False, speaks=part.speaks)
        trial = work.trial(folder.path.name, StepsSpec(), None)
        order = ScriptOrder(part.ranks_per_node, waits_at_the_end=trial.strategy == "ddp")
        self._tracker = Tracker(work, trial, agreed, _kinds(part.steps), in_own_process=False, nvme=_nvme, order=order)
        self._tracker.look_back(self._at_start)

    def _held(self) -> tuple[Holdings, str]:
        tracker = self._tracker
        if tracker is None:
            at = "start-up" if self._keeper.account.tracked is None else f"step {self._keeper.account.num_steps + 1}"
            return self._keeper.reachable(), at
        held = tracker.held()
        return self._keeper.reachable() if held is None else held, tracker.position

    # What the training's calls tell.

    def forward_begins(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """A micro-step begins, and with the first one the step."""
        if not self._is_open and self._keeper.account.num_steps == self._part.steps - 1 >= _SNAPSHOT_FROM:
            self._keeper.snapshot_begins()
        self._is_open = True
        if self._tracker is not None:
            self._tracker.forward_begins(args, kwargs)

    def forward_ended(self, output: Any) -> None:
        if self._tracker is not None:
            self._tracker.forward_ended(output)

    def backward_begins(self, loss: Any) -> None:
        if self._tracker is not None:
            self._tracker.backward_begins(loss)

    def backward_ended(self) -> None:
        if self._tracker is not None:
            self._tracker.backward_ended()

    def step_begins(self) -> None:
        if self._tracker is not None and self._is_open:
            self._tracker.step_begins()

    def step_ended(self) -> None:
        """One more step; after the last one the script ends."""
        if not self._is_open:  # a second optimizer of the same step
            return
        self._is_open = False
        if self._tracker is not None:
            self._tracker.step_ended()
        self._keeper.step_ended()
        self._await_passes()
        if self._keeper.account.num_steps >= self._steps:
            self._keeper.dump_snapshot()
            end()

    def _await_passes(self) -> None:
        """DeepCompile compiles anew at a later step and fills the device from then on: that and the next are played.

        Not on a device without end, where the need of a script is seen that does not fit: it would be filled as well.
        """
        schedule = getattr(sys.modules.get("deepspeed.compile.backend"), "remaining_schedule", None)
        if schedule and (self._keeper.account.total_bytes or 0) < BOUNDLESS:
            self._steps = max(self._steps, schedule[-1][0] + 2)

    def failed(self, error: BaseException) -> None:
        """The tracker writes what it has."""
        if self._tracker is not None and not isinstance(error, SystemExit):
            if isinstance(error, torch.OutOfMemoryError):
                self._keeper.dump_snapshot()
            self._tracker.failed(error)


_SNAPSHOT_FROM = 2
"""The snapshot's stacks are kept in a step of their own, behind those under the ledger."""


def _kinds(steps: int) -> list[str]:
    """What each step is for: the first and the second one under the ledger."""
    return ["first", "memory", *["warmup"] * steps][:steps]


def _nvme(folder: str | None, rank: int) -> NvmeAccount:
    """What the swappers hand to their handle: no file is written."""
    return NvmeAccount(folder, rank, kernels.read_block_io, kernels.swap_file_bytes)


def end() -> NoReturn:
    """End the script: here, and in the main thread where that is another one."""
    if threading.current_thread() is not threading.main_thread():
        main = threading.main_thread().ident
        if main is not None:
            signal.pthread_kill(main, _END)
        raise SystemExit(0)  # by its very type, which ends a thread without a word
    raise AllStepsPlayed(0)


def _end_main(_number: int, _frame: Any) -> None:
    raise AllStepsPlayed(0)
