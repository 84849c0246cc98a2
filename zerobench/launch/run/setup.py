"""Lay out a run before its first trial starts, so that the plan is on disk whatever happens later.

A run folder is made to be shared, so secrets stay out of it. A trial needs its DeepSpeed config and paths unchanged, so
one with a secret is refused before anything is written. A description is for readers only: there the secret is masked.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic_core import to_json

from zerobench.common.errors import UserError
from zerobench.common.redaction import is_secret_name, redact_text, redact_value
from zerobench.common.temporary_files import remove_leftovers
from zerobench.config.deepspeed import build_ds_config
from zerobench.config.derived.strategy import uses_deepspeed
from zerobench.config.rules.rules import Skip
from zerobench.config.sweep.expand import PlannedTrial
from zerobench.config.trial.trial import TrialSpec, slug
from zerobench.launch.run.launcher import launched_processes
from zerobench.launch.run.trial_record import skipped_record
from zerobench.records.folder import RunFolder, TrialFolder, write_pieces, write_plain, write_whole
from zerobench.records.records import TrialRecord
from zerobench.records.store import STAMP, Plan, PlanEntry, Run, read_json
from zerobench.records.swap_folder import set_swap_folder

_plain = lru_cache(maxsize=10_000)(lambda text: redact_text(text) == text)
"""True if a text holds no secret; cached, since trials of a sweep repeat each other."""


def refuse_secrets(trial: TrialSpec, ds_config: Mapping[str, Any] | None) -> None:
    """Raise UserError if the stored form of `trial`, or of its DeepSpeed config, contains a secret."""
    for place, text in (*_texts(trial.model_dump(mode="json"), ""), *_texts(ds_config or {}, "ds_config")):
        name = place.rpartition(".")[2]
        # Names of a model's fields are no evidence: `eos_token` is an ordinary one.
        if not _plain(text) or (place.startswith("ds_config.") and is_secret_name(name)):
            raise UserError(
                f"{place}: looks like a secret (a password in a URL, a token), which the run would store "
                "and show; remove it, or keep it in ~/.netrc or an environment variable"
            )


def _texts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield each text within `value` with its dotted path."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, f"{place}.{key}".removeprefix("."))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, place)


def new_run_folder(reports: Path, sweep_name: str) -> RunFolder:
    """Create a folder `<sweep>_<time>` under `reports` for a run that starts now, and remove half-written files of
    killed runs in `reports`.

    Raises OSError if it cannot be made.
    """
    for folder in (reports, *(path for path in reports.glob("*") if path.is_dir())):
        remove_leftovers(folder)
    name = f"{slug(redact_text(sweep_name))}_{time.strftime(STAMP)}"
    for number in range(1, 100):
        path = reports.resolve() / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return RunFolder(path)
    raise UserError(f"--reports: {reports}: a hundred runs of {sweep_name} started within a second")


def resolved_configs(planned: Sequence[PlannedTrial]) -> dict[str, dict[str, Any]]:
    """Return the DeepSpeed config of each trial that will run under DeepSpeed, by trial id.

    Raises UserError if a trial's config is refused or holds a secret, or if two trials are the same.
    """
    configs: dict[str, dict[str, Any]] = {}
    seen: set[str] = set()
    for item in planned:
        if item.trial.trial_id in seen:
            raise UserError(f"sweep: trial {item.trial.trial_id} appears twice")
        seen.add(item.trial.trial_id)
        if item.skipped is None and uses_deepspeed(item.trial):
            configs[item.trial.trial_id] = build_ds_config(item.trial)
        refuse_secrets(item.trial, configs.get(item.trial.trial_id))
    return configs


def lay_out(
    run: RunFolder,
    planned: Sequence[PlannedTrial],
    configs: Mapping[str, dict[str, Any]],
    sweep: Mapping[str, Any],
    environment: Mapping[str, Any],
    *,
    make_folders: bool = True,
) -> None:
    """Write the run's documents and a folder for each trial; the plan last, which makes the folder a run.

    One list repeats every trial's request, which restores torn specs. Without `make_folders`, trials to run get their
    folders when they begin (make_folder): thirty thousand files take a file system longer than everything else about
    submitting ten thousand trials.

    Raises OSError if a file cannot be written.
    """
    write_whole(run.sweep, yaml.safe_dump(redact_value(sweep, by_name=False), sort_keys=False, allow_unicode=True))
    write_whole(run.environment, json.dumps(environment, indent=1))
    write_requests(run, planned, configs)
    for item in planned:
        folder = run.trial(item.trial.trial_id)
        if (item.skipped is None and not make_folders) or folder.path.exists():  # a run that is extended has some
            continue
        lay_out_trial(folder, item.trial, configs.get(item.trial.trial_id))
        if item.skipped is not None:
            # Not to the disk at once, which takes seconds for thousands: without its plan the folder is no run yet.
            record = record_of_skip(run.run_id, item.trial, item.skipped)
            write_plain(folder.record, record.model_dump_json(indent=1))
    entries = [
        PlanEntry(
            trial_id=item.trial.trial_id,
            rule=item.skipped and item.skipped.rule,
            reason=item.skipped and item.skipped.reason,
        )
        for item in planned
    ]
    write_whole(run.plan, Plan(run_id=run.run_id, trials=entries).model_dump_json(indent=1))


def write_requests(run: RunFolder, planned: Sequence[PlannedTrial], configs: Mapping[str, dict[str, Any]]) -> None:
    """Write the request of each trial, skipped ones too, to one file.

    Raises OSError if it cannot be written.
    """
    write_pieces(run.asked, (_request_line(item.trial, configs) for item in planned))


def lay_out_trial(folder: TrialFolder, trial: TrialSpec, ds_config: Mapping[str, Any] | None) -> None:
    """Make a trial's folder with the files the worker reads."""
    folder.path.mkdir(parents=True)
    write_plain(folder.spec, trial.model_dump_json(indent=1))
    if ds_config is not None:
        written = set_swap_folder(ds_config, trial, folder)
        write_plain(folder.ds_config, to_json(written, indent=1, inf_nan_mode="constants").decode())


def make_folder(run: Run, trial_id: str) -> None:
    """Make the missing folder of a trial; the caller holds the trial. An existing one stays.

    Raises OSError if it cannot be written. Raises UserError if the trial's request is torn.
    """
    folder = run.folder.trial(trial_id)
    if folder.spec.exists() or trial_id not in run.asked:
        return
    folder.path.mkdir(parents=True, exist_ok=True)
    write_config(run, trial_id)
    write_spec(run, trial_id)


def write_spec(run: Run, trial_id: str) -> None:
    """Write a trial's missing or torn spec as requested.

    Raises OSError if it cannot be written. Raises UserError if nothing is left that describes the trial.
    """
    trial = run.spec_to_run(trial_id)
    write_whole(run.folder.trial(trial_id).spec, trial.model_dump_json(indent=1))


def write_config(run: Run, trial_id: str) -> None:
    """Write its DeepSpeed config, if it has one; rebuilt in a run without a list of requests."""
    trial, folder = run.spec_to_run(trial_id), run.folder.trial(trial_id)
    if trial_id in run.asked:
        config = run.asked[trial_id]["ds_config"]
    else:
        config = build_ds_config(trial) if uses_deepspeed(trial) else None
    if config is not None:
        written = set_swap_folder(config, trial, folder)
        write_whole(folder.ds_config, json.dumps(written, indent=1))


def renew_swap_folder(trial: TrialSpec, folder: TrialFolder) -> None:
    """Update the swap folder in the config of a trial that swaps: a run may have been moved since.

    Raises OSError if it cannot be written. Raises UserError if it is torn.
    """
    if trial.nvme_path is None or not folder.ds_config.exists():
        return
    config = read_json(folder.ds_config)
    renewed = set_swap_folder(config, trial, folder)
    if renewed != config:
        write_whole(folder.ds_config, json.dumps(renewed, indent=1))


def _request_line(trial: TrialSpec, configs: Mapping[str, dict[str, Any]]) -> str:
    config = to_json(configs.get(trial.trial_id), inf_nan_mode="constants")
    head = b'{"trial_id":' + to_json(trial.trial_id)
    return (head + b',"trial":' + trial.model_dump_json().encode() + b',"ds_config":' + config + b"}\n").decode()


def record_of_skip(run_id: str, trial: TrialSpec, skip: Skip) -> TrialRecord:
    """Return the record of a trial that a rule skips."""
    return skipped_record(trial, run_id, skip.rule, skip.reason, launched_processes(trial))
