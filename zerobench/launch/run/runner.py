"""Run the trials of a run in sequence, continuing after failures; resume interrupted runs."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from zerobench.common.errors import UserError, unknown_choice
from zerobench.common.file_errors import failure_of
from zerobench.common.temporary_files import remove_leftovers
from zerobench.common.units import counted
from zerobench.common.vocabulary import Status
from zerobench.config.derived.machine import Machine
from zerobench.config.sweep.expand import PlannedTrial
from zerobench.config.sweep.sweep import Sweep
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.launch.machine.environment import capture_environment
from zerobench.launch.machine.installed import check_installed
from zerobench.launch.machine.tried_versions import untried
from zerobench.launch.run.attempt import not_started, note_start, run_trial
from zerobench.launch.run.executor import Executor, check_trials
from zerobench.launch.run.kernels import compile_first, kernels_of
from zerobench.launch.run.lock import locked, refuse_links, shared, trial_locked
from zerobench.launch.run.lost import renew, type_interruption
from zerobench.launch.run.mending import has_torn_documents, mend_documents, mend_skipped, mend_trial
from zerobench.launch.run.node_environment import record_hosts
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.room import lacks_room_for_weights, lacks_shared_memory
from zerobench.launch.run.setup import lay_out, make_folder, new_run_folder, resolved_configs, write_requests
from zerobench.launch.run.simulations import predict
from zerobench.launch.run.stop import Stop, stop_on_signals
from zerobench.records.folder import RunFolder, write_whole, writing
from zerobench.records.records import TrialRecord
from zerobench.records.store import STAMP, Run, TornError, load_run

_KEPT = {Status.COMPLETED, Status.SKIPPED}
"""Statuses that a resumed run does not repeat."""


@dataclass(frozen=True)
class RunResult:
    """Result of a run."""

    folder: RunFolder
    statuses: Counter[Status] = field(default_factory=Counter)
    """Number of trials of the whole plan by status; without trials never started."""
    interrupted: bool = False

    def whole(self) -> RunFolder:
        """Return the folder. Raises KeyboardInterrupt if the run was stopped, which also stops its caller."""
        if self.interrupted:
            raise KeyboardInterrupt
        return self.folder

    @property
    def exit_code(self) -> int:
        """0 if all trials completed or were skipped, 1 if some failed, 130 if the run was stopped."""
        if self.interrupted:
            return 130
        return 1 if set(self.statuses) - _KEPT else 0


def run_sweep(
    planned: Sequence[PlannedTrial],
    sweep: Mapping[str, Any],
    *,
    environment: Mapping[str, Any],
    reports: Path,
    executor: Executor,
    observer: Observer,
) -> RunResult:
    """Run all of `planned` into a fresh folder under `reports`.

    `sweep` is the requested sweep, whose name the folder gets, `environment` describes the machine; both are stored
    with the run.

    Raises UserError if a trial's config is refused, a package is not installed, or the folder cannot be written.
    """
    configs = resolved_configs(planned)
    to_run = [item.trial for item in planned if item.skipped is None]
    check_installed(to_run)
    check_trials(to_run, executor)
    with writing(f"--reports: {reports}"):
        run = new_run_folder(reports, sweep["name"])
        lay_out(run, planned, configs, sweep, environment)
    return _run_pending(run, executor, observer)


def start_sweep(
    sweep: Sweep,
    planned: Sequence[PlannedTrial],
    machine: Machine,
    *,
    reports: Path,
    executor: Executor,
    observer: Observer,
) -> RunResult:
    """Run `sweep`, planned for `machine`, in a new folder under `reports`. Raises UserError as `run_sweep`."""
    environment = capture_environment() | {"bf16_slowdown": machine.bf16_slowdown}
    return run_sweep(
        planned, sweep.document, environment=environment, reports=reports, executor=executor, observer=observer
    )


def extend_run(
    run: RunFolder,
    planned: Sequence[PlannedTrial],
    *,
    sweep: Mapping[str, Any],
    environment: Mapping[str, Any],
    executor: Executor,
    observer: Observer,
) -> RunResult:
    """Run those of `planned` that the run does not have yet; `planned` and `sweep` describe the extended run.

    Raises UserError as `run_sweep`.
    """
    there = {entry.trial_id for entry in load_run(run.path).plan.trials}
    with writing(f"{run.path}"):
        lay_out(run, planned, resolved_configs(planned), sweep, environment)
    new = [item.trial.trial_id for item in planned if item.trial.trial_id not in there]
    with stop_on_signals() as stop:
        return run_beside_others(run.path, new, executor=executor, observer=observer, stop=stop)


def resume_run(
    path: Path,
    *,
    environment: Mapping[str, Any],
    executor: Executor,
    observer: Observer,
    planned: Sequence[PlannedTrial] = (),
) -> RunResult:
    """Run the missing and failed trials of the run at `path`; completed trials are kept.

    `environment` is stored next to that of the run's start. Earlier results of repeated trials move to the run's folder
    `set_aside`: no measurement is lost. `planned`, if the sweep was named again, describes the trials of a run without
    a list of them (refuse_other_plan has checked that they agree).

    Raises UserError if `path` is not a run folder, one of its documents is torn, or it cannot be written.
    """
    run = RunFolder(path.resolve())
    mend_run(run, lambda: environment)
    refuse_own_script(load_run(run.path))
    name = f"environment_resumed_{time.strftime(STAMP)}.json"
    with writing(f"--resume: {path}"):
        write_whole(run.path / name, json.dumps(environment, indent=1))
    return _run_pending(run, executor, observer, planned)


def mend_run(run: RunFolder, environment: Callable[[], Mapping[str, Any]]) -> None:
    """Restore the run's torn documents before it is resumed (mend_documents), alone in the run. `environment` describes
    this machine if needed.

    Raises UserError if another runner is in it, a document cannot be written, or nothing is left that describes it.
    """
    if not has_torn_documents(run):
        return
    with writing(f"--resume: {run.path}"), locked(run):
        mend_documents(run, environment())


def refuse_own_script(run: Run) -> None:
    """Raise UserError if the run is of a user's own script, which zerobench cannot start again."""
    if run.is_own_script:
        raise UserError(f"--resume: {run.folder.path} watched your own script; run it again with: zerobench watch")


def _run_pending(
    folder: RunFolder, executor: Executor, observer: Observer, planned: Sequence[PlannedTrial] = ()
) -> RunResult:
    with locked(folder), stop_on_signals() as stop:
        remove_leftovers(folder.path, is_whole=True)
        run = load_run(folder.path)
        refuse_links(run.folder, (entry.trial_id for entry in run.plan.trials if entry.reason is None))
        if planned and not folder.asked.exists():
            write_requests(folder, planned, resolved_configs(planned))
        mend_skipped(run)
        known = list(standing(run))
        kept = Counter(status for _, status in known if status)
        to_do = [trial_id for trial_id, status in known if status is None]
        for trial_id in to_do:
            mend_trial(run, trial_id, executor)
        check_installed(map(run.spec, to_do))
        if any(run.spec(trial_id).evidence is not Evidence.FORMULA for trial_id in to_do):
            for line in untried():
                observer.note(line)
        measured = (trial for trial in map(run.spec, to_do) if trial.evidence is Evidence.MEASURED)
        record_hosts(run.folder.nodes, (host for trial in measured for host in executor.nodes(trial)))
        return _run(run, to_do, kept, executor, stop, observer)


def _run(
    run: Run, to_do: Sequence[str], kept: Counter[Status], executor: Executor, stop: Stop, observer: Observer
) -> RunResult:
    """Run `to_do`, which the caller holds and whose folders have no links out (refuse_links)."""
    check_trials(map(run.spec, to_do), executor)
    observer.run_started(run.folder, len(to_do), kept[Status.COMPLETED], kept[Status.SKIPPED])
    try:
        statuses = kept + _run_all(run, to_do, executor, stop, observer)
    except BrokenPipeError:  # whoever read what we print has gone; no folder is at fault
        raise
    except OSError as error:
        raise UserError(
            f"{failure_of(error, run.folder.path)}; measurements are kept, "
            f"continue with: zerobench run --resume {run.folder.path}"
        ) from None
    finally:
        observer.run_ended()
    return RunResult(run.folder, statuses, interrupted=stop.asked)


def run_beside_others(
    path: Path, trial_ids: Sequence[str], *, executor: Executor, observer: Observer, stop: Stop
) -> RunResult:
    """Run those of `trial_ids` without a kept record, while other jobs may run other trials of the run at `path`.

    Raises UserError if `path` is not a run folder or another runner holds all of it, a trial is not in its plan,
    `executor` cannot run one, or the folder cannot be written.
    """
    folder = RunFolder(path.resolve())
    with shared(folder), ExitStack() as held:
        run = load_run(folder.path)
        planned = {entry.trial_id for entry in run.plan.trials}
        for trial_id in trial_ids:
            if trial_id not in planned:
                raise unknown_choice("trial", trial_id, planned)
        refuse_links(run.folder, trial_ids)
        known = dict(standing(run, trial_ids))
        mine = [trial_id for trial_id in trial_ids if known[trial_id] is None and _hold(folder, trial_id, held)]
        kept = Counter(status for status in known.values() if status)
        for trial_id in mine:
            mend_trial(run, trial_id, executor)
        return _run(run, mine, kept, executor, stop, observer)


def _hold(run: RunFolder, trial_id: str, held: ExitStack) -> bool:
    """Hold a trial, whose folder may not exist yet, as long as `held`; returns False if another job has it."""
    folder = run.trial(trial_id)
    folder.path.mkdir(parents=True, exist_ok=True)
    return held.enter_context(trial_locked(folder))


def standing(run: Run, trial_ids: Iterable[str] | None = None) -> Iterator[tuple[str, Status | None]]:
    """Yield each planned trial's id with its status if it need not run again, else None.

    A trial with a torn record must run again.
    """
    skipped = {entry.trial_id for entry in run.plan.trials if entry.reason is not None}
    for trial_id in (entry.trial_id for entry in run.plan.trials) if trial_ids is None else trial_ids:
        status = Status.SKIPPED if trial_id in skipped else run.status(trial_id)
        yield trial_id, status if status in _KEPT else None


def refuse_other_plan(path: Path, planned: Sequence[PlannedTrial]) -> None:
    """Raise UserError if the plan of the run at `path` differs from `planned`."""
    run = load_run(path)
    there = [entry.trial_id for entry in run.plan.trials]
    wanted = [item.trial.trial_id for item in planned]
    others = sorted(set(there) ^ set(wanted))
    others += [item.trial.trial_id for item in planned if not others and _is_other(item.trial, run)]
    if others:
        raise UserError(
            f"--resume: {path} has another plan: it differs in {counted(len(others), 'trial')}, the first {others[0]}; "
            "without a sweep, --resume continues the run's own plan"
        )


def _is_other(trial: TrialSpec, run: Run) -> bool:
    """Return True if the run's own trial of that name differs from `trial`; a torn one counts as equal."""
    try:
        return trial != run.spec_to_run(trial.trial_id)
    except TornError:
        return False


def _run_all(run: Run, to_do: Sequence[str], executor: Executor, stop: Stop, observer: Observer) -> Counter[Status]:
    """Run the trials in `to_do`, which the caller holds; returns their statuses."""
    statuses: Counter[Status] = Counter()
    for trial_id in to_do:
        make_folder(run, trial_id)
    trials = [(run.spec(trial_id), run.folder.trial(trial_id)) for trial_id in to_do]
    number = itertools.count(1)

    def started(trial: TrialSpec) -> None:
        observer.trial_started(trial, next(number), len(to_do))

    def ended(record: TrialRecord) -> None:
        statuses[record.status] += 1
        observer.trial_ended(record)

    # Predicted trials first: they take seconds, and their results may save the rest.
    predicted = [pair for pair in trials if pair[0].evidence.is_predicted]
    for trial, folder in predicted:
        renew(run, trial, folder, executor)
    taken = cache(executor.interruption)  # one answer for all that are cut off at once

    def begun(trial: TrialSpec) -> None:
        if executor.job is not None and trial.evidence.is_forked:
            note_start(trial, run.folder.trial(trial.trial_id), executor, time.time())
        started(trial)

    def predicted_one(record: TrialRecord) -> None:
        ended(type_interruption(record, run.folder.trial(record.trial_id), taken))

    predict(predicted, run.run_id, executor.num_cpus, stop, begun, predicted_one, observer.playing)
    measured = [pair for pair in trials if not pair[0].evidence.is_predicted]
    failures = {} if stop.asked else compile_first(measured, executor, stop, observer)
    for trial, folder in measured:
        if stop.asked:
            break
        renew(run, trial, folder, executor)
        started(trial)
        uncompiled = (failures[name] for name in kernels_of(trial, folder, executor) if name in failures)
        lacks = lacks_shared_memory(trial, folder, executor) or lacks_room_for_weights(trial, folder)
        failure = next(uncompiled, None) or lacks
        if failure is None:
            ended(run_trial(trial, folder, run.run_id, executor, stop, observer))
        else:
            ended(not_started(trial, folder, run.run_id, failure))
    return statuses
