"""One trial, from its folder to its record: start it, watch it, end it, say how it ended."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from zerobench.ds_config import swap_folder
from zerobench.errors import UserError
from zerobench.folder import TrialFolder, write_whole
from zerobench.records import NvmlSummary, RankRecord, TrialRecord
from zerobench.run.compile_locks import left_over, remove_left_over
from zerobench.run.launched import LaunchedTrial
from zerobench.run.launcher import (
    WORKER_MODULE,
    command_text,
    deepspeed_argv,
    free_port,
    launch_environment,
    launched_processes,
    read_hosts,
    visible_devices,
)
from zerobench.run.logs import redact_logs
from zerobench.run.observer import Observer
from zerobench.run.oom import read_oom_counters
from zerobench.run.outcome import Ending, Stopped, classify
from zerobench.run.stop import Stop
from zerobench.spec.trial import Evidence, TrialSpec

Model = TypeVar("Model", bound=BaseModel)

LAST_LINES = 15
TAIL_BYTES = 8192


@dataclass(frozen=True)
class Site:
    """Where trials run."""

    num_cpus: int
    """Cores of one node."""
    num_gpus: int
    """GPUs of one node."""
    hostfile: Path | None = None
    """The nodes, for trials on several."""
    worker_module: str = WORKER_MODULE
    settle_s: float = 60.0
    """How long the launcher may take to end once a rank failed or all are done: it ends a node's other ranks itself,
    within some 30 s, but knows nothing of other nodes."""


def check_site(trials: Iterable[TrialSpec], site: Site) -> None:
    """Refuse, before anything is started, what `site` cannot give to one of `trials`.

    Raises UserError: CUDA_VISIBLE_DEVICES or the hostfile will not do, or there is none for several nodes.
    """
    for trial in (trial for trial in trials if trial.evidence in {Evidence.MEASURED, Evidence.SOLO}):
        _hosts(trial, site)
        _devices(trial, site)


def run_trial(
    trial: TrialSpec, folder: TrialFolder, run_id: str, site: Site, stop: Stop, observer: Observer
) -> TrialRecord:
    """Run `trial`, whose spec lies in `folder`; its record, which is also written there.

    Raises OSError: the folder cannot be written.
    Raises UserError: the devices or hosts that the user named do not do.
    """
    expected = launched_processes(trial)
    launched = LaunchedTrial(*_command(trial, folder, site), folder, _hosts(trial, site))
    _remove_swap_folder(trial)
    oom_before = read_oom_counters()
    started_at_s = time.time()
    with launched:
        stopped = launched.wait(stop, trial.timeout_s, expected, site.settle_s, observer.trial_progress)
        stacks = launched.dump_stacks(stop) if stopped is Stopped.TIMEOUT else {}
        exit_code = launched.exit_code
        launched.end()
    _remove_swap_folder(trial)
    locks = _compile_locks(started_at_s, stopped) if exit_code != 0 and not _hosts(trial, site) else []
    redact_logs(folder)
    records, unreadable = _read_all(folder.rank_records(), RankRecord)
    ending = Ending(
        ranks_expected=expected,
        exit_code=exit_code,
        records=records,
        written_at_s={r.rank: folder.rank_record(r.rank).stat().st_mtime for r in records},
        deaths=tuple(launched.watch.deaths.values()),
        progress=launched.watch.look(),
        stopped=stopped,
        timeout_s=trial.timeout_s,
        oom=read_oom_counters().since(oom_before),
        stacks=stacks,
        last_lines=last_lines(folder),
    )
    notes = [*launched.notes, *locks, *unreadable]
    record = _record(trial, folder, run_id, ending, notes)
    record = record.model_copy(update={"started_at_s": started_at_s, "ended_at_s": time.time()})
    write_whole(folder.record, record.model_dump_json(indent=1))
    return record


def _command(trial: TrialSpec, folder: TrialFolder, site: Site) -> tuple[list[str], dict[str, str]]:
    """The command line and what its environment has more; written to the trial's folder too."""
    added = launch_environment(trial, folder, num_cpus=site.num_cpus, num_gpus=site.num_gpus)
    argv = deepspeed_argv(
        trial,
        folder,
        free_port(),
        site.hostfile,
        devices=_devices(trial, site),
        worker_module=site.worker_module,
    )
    write_whole(folder.command, command_text(argv, added))
    return argv, added


def _hosts(trial: TrialSpec, site: Site) -> list[str]:
    """The nodes of a trial on several; none where this one does."""
    if trial.num_nodes == 1 or launched_processes(trial) == 1:
        return []
    if site.hostfile is None:
        raise UserError(f"num_nodes: {trial.num_nodes}: the nodes are named by --hostfile FILE, and none was given")
    hosts = read_hosts(site.hostfile)
    if len(hosts) < trial.num_nodes:
        raise UserError(f"--hostfile: {site.hostfile} names {len(hosts)} hosts; a trial needs {trial.num_nodes}")
    return hosts[: trial.num_nodes]


def _devices(trial: TrialSpec, site: Site) -> list[int] | None:
    return visible_devices(trial, os.environ) if site.num_gpus else None


def _remove_swap_folder(trial: TrialSpec) -> None:
    """Delete what DeepSpeed swapped to this node's disk: it leaves it behind, and the next trial would read it."""
    path = swap_folder(trial)
    if path is not None and Path(path).is_dir():
        shutil.rmtree(path)


def _compile_locks(started_at_s: float, stopped: Stopped | None) -> list[str]:
    """Free what a compilation that was cut short holds; say so, and on a timeout which other lock may have held us."""
    notes = [
        f"removed the lock of a compilation that was cut short: {lock}"
        for lock in remove_left_over(started_at_s, os.environ)
    ]
    if stopped is Stopped.TIMEOUT:
        notes += [
            f"nobody on this machine holds the compile lock {lock}; a trial that needs that kernel waits for ever"
            for lock in left_over(os.environ)
        ]
    return notes


def _record(trial: TrialSpec, folder: TrialFolder, run_id: str, ending: Ending, notes: list[str]) -> TrialRecord:
    status, failure = classify(ending)
    nvml, unreadable = _read_all(sorted(folder.path.glob("nvml_*.json")), NvmlSummary)
    if ending.stopped is Stopped.SETTLED:
        notes = [*notes, "the launcher did not end by itself and was ended"]
    elif failure is None and ending.exit_code:
        notes = [*notes, f"the launcher exited with {ending.exit_code} after every rank had completed"]
    return TrialRecord(
        run_id=run_id,
        trial_id=trial.trial_id,
        config_hash=trial.config_hash,
        status=status,
        reason=failure.message if failure else None,
        failure=failure,
        exit_code=ending.exit_code,
        ranks_expected=ending.ranks_expected,
        ranks_reported=len(ending.records),
        nvml=nvml,
        notes=[*notes, *unreadable],
    )


def _read_all(paths: Iterable[Path], model: type[Model]) -> tuple[list[Model], list[str]]:
    """The documents at `paths` that can be read, and a line for each that cannot."""
    read, unreadable = [], []
    for path in paths:
        try:
            read.append(model.model_validate_json(path.read_bytes()))
        except (OSError, ValidationError) as error:
            unreadable.append(f"{path.name} cannot be read: {str(error).splitlines()[0]}")
    return read, unreadable


def last_lines(folder: TrialFolder) -> str:
    """The end of what the launcher and each rank printed, told to people when a trial fails."""
    parts = []
    for path in [folder.stderr, *sorted((folder.path / "logs").glob("*.log"))]:
        lines = _tail(path)
        if lines:
            parts.append(f"== {path.name}\n{lines}")
    return "\n".join(parts[:8])


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-LAST_LINES:])
