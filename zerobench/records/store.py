"""Reads a run back from disk: the only entry point for reports.

Strict on purpose: a damaged or newer record is an error that names the file, because a table that silently lacks a
trial is worse than none. Older records are upgraded by the functions in `UPGRADES`. Trials are read one at a time, so a
run of a hundred thousand needs no more memory than its largest trial.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel
from pydantic_core import from_json

from zerobench.common.errors import UserError, choices_for
from zerobench.common.units import counted
from zerobench.common.vocabulary import Status
from zerobench.config.trial.base import validated
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.folder import RunFolder, TrialFolder
from zerobench.records.records import SCHEMA_VERSION, MemoryCourses, RankRecord, Record, Start, TrialRecord

_DIGITS_AS_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)

Document = dict[str, Any]
Model = TypeVar("Model", bound=BaseModel)

STAMP = "%Y%m%d-%H%M%S"
"""Start time in a run folder's name, `<sweep>_<stamp>`."""

_WATCH_AGAIN = "start the script again with: zerobench watch"


def _one_name(text: str) -> str:
    # A plan from another user must not refer to files outside its folder
    if _NAME.fullmatch(text) is None:
        raise ValueError("is not one plain name: letters, digits, dots, dashes and underscores, no dot first")
    return text


def _one_folder(text: str) -> str:
    # Any name of a run's folder, but a single one
    if text in {"", ".", ".."} or any(character in text for character in "/\0\n"):
        raise ValueError("is not one plain name of a folder")
    return text


_NAME = re.compile(r"[\w-][\w.-]*", re.ASCII)
PlainName = Annotated[str, AfterValidator(_one_name)]
"""Name of a folder or a file of a run; lists of trial ids are separated by spaces."""
FolderName = Annotated[str, AfterValidator(_one_folder)]


class TornError(UserError):
    """A document is incomplete: cut short, overwritten, or lost."""


class PlanEntry(Record):
    """One trial of a run, in the order of the sweep; its spec is in its folder."""

    trial_id: PlainName
    rule: str | None = None
    """For skipped trials: the name of the rule."""
    reason: str | None = None
    """For skipped trials: one line."""


class Plan(Record):
    """plan.json: all trials of a run."""

    schema_version: int = SCHEMA_VERSION
    run_id: FolderName
    trials: list[PlanEntry]


UPGRADES: dict[type[BaseModel], dict[int, Callable[[Document], Document]]] = {
    Plan: {},
    TrialSpec: {},
    Start: {},
    TrialRecord: {},
    RankRecord: {},
    MemoryCourses: {},
}
"""For each kind of document: from schema version to the function that upgrades it to the next one. A trial's spec has
no version; its run's applies (plan.json)."""


_ALIKE = ("model", "data", "hyperparameters", "steps", "prediction")
"""Frozen parts of a trial's spec that most trials of a run share."""


class Trial:
    """A trial of a run on disk that has ended; each of its files is read when first asked for.

    Reading raises UserError: a file is damaged, missing or newer than this version.
    """

    def __init__(self, run: Run, trial_id: str) -> None:
        self._run = run
        self.trial_id = trial_id

    @property
    def folder(self) -> TrialFolder:
        return self._run.folder.trial(self.trial_id)

    @cached_property
    def spec(self) -> TrialSpec:
        return self._run.spec(self.trial_id)

    @cached_property
    def record(self) -> TrialRecord:
        return self._run.record(self.trial_id)

    @cached_property
    def ranks(self) -> tuple[RankRecord, ...]:
        """By rank; fewer than expected where ranks died without a record."""
        return self._run.ranks(self.trial_id, self.record)


@dataclass(frozen=True)
class Run:
    """One invocation of a sweep, on disk."""

    folder: RunFolder
    plan: Plan
    sweep: Document
    """The sweep, with the command line's changes."""
    began_on: Document
    """Versions, hardware and topology of the machine that began the run: it ran or submitted the trials."""
    written_version: int = SCHEMA_VERSION
    """Schema version of the run's files."""
    _parts: dict[str, BaseModel] = field(default_factory=dict, repr=False, compare=False)
    """Shared parts of specs, by their contents: equal parts are stored once."""
    _given: dict[frozenset[str], set[str]] = field(default_factory=dict, repr=False, compare=False)
    """Shared sets of the fields present in spec files."""

    @property
    def run_id(self) -> str:
        return self.plan.run_id

    @cached_property
    def nodes(self) -> dict[str, Document]:
        """Environment of each recorded node, by its name in the scheduler or the hostfile.

        A node that could not be recorded has `fault` instead. Read on first use: the jobs of a large array open their
        run without it.

        Raises UserError: one is damaged.
        """
        return {path.stem: read_json(path) for path in sorted(self.folder.nodes.glob("*.json"))}

    @cached_property
    def environment(self) -> Document:
        """Versions, hardware and topology of the machine that ran the trials.

        With recorded nodes, the first by name that has GPUs: a machine that submits a run may have other versions and
        no GPU. Otherwise the machine that began the run.
        """
        known = [node for _, node in sorted(self.nodes.items()) if "fault" not in node]
        return next((node for node in known if node.get("gpus")), next(iter(known), self.began_on))

    @property
    def submitted_from(self) -> Document | None:
        """Environment of the machine that began the run, if the trials ran on recorded nodes; else None."""
        return None if self.environment is self.began_on else self.began_on

    @property
    def began_at_s(self) -> Any:
        """Unix time of the run's start, by the clock of the machine that began it (environment.json)."""
        return self.began_on.get("captured_at_s")

    def trials(self) -> Iterator[Trial]:
        """Trials that have ended, skipped ones included, in the plan's order, read one at a time.

        Raises UserError: a record is damaged, missing or newer than this version.
        """
        for entry in self.plan.trials:
            if self.folder.trial(entry.trial_id).record.exists():
                yield self.trial(entry.trial_id)

    def trial(self, trial_id: str) -> Trial:
        """The trial `trial_id`, which has ended, read whole.

        Raises UserError: a record of it is damaged, missing or newer than this version.
        """
        trial = Trial(self, trial_id)
        _ = trial.spec, trial.record, trial.ranks
        return trial

    def ranks(self, trial_id: str, record: TrialRecord) -> tuple[RankRecord, ...]:
        """Records of the ranks of trial `trial_id`, whose own is `record`.

        Raises UserError: one of them is damaged, newer than this version, or of another trial.
        """
        folder = self.folder.trial(trial_id)
        with self._suggest_remedy():
            ranks = tuple(read_record(path, RankRecord) for path in folder.rank_records())
            _check_belongs(folder, record, ranks)
        return ranks

    def record(self, trial_id: str) -> TrialRecord:
        """Result of trial `trial_id`, without its ranks.

        Raises UserError: its record is damaged, missing or newer than this version.
        """
        with self._suggest_remedy():
            return read_record(self.folder.trial(trial_id).record, TrialRecord)

    def status(self, trial_id: str) -> Status | None:
        """Status of trial `trial_id`; None if it has not ended, or a document of it is damaged or lost.

        Its spec and its ranks' records are only checked to be complete.
        """
        folder = self.folder.trial(trial_id)
        if not folder.record.exists():
            return None
        try:
            record = read_record(folder.record, TrialRecord)
            paths = folder.rank_records()
            for path in [*paths, *([folder.spec] if folder.spec.exists() else [])]:
                read_json(path)
        except TornError:
            return None
        whole = record.trial_id == trial_id and len(paths) >= record.ranks_reported
        return record.status if whole else None

    @property
    def is_own_script(self) -> bool:
        """Return whether the run is of a user's own script, not of a sweep."""
        return is_own_script(self.sweep)

    @contextmanager
    def _suggest_remedy(self, trial_id: str | None = None) -> Iterator[None]:
        """Add the remedy to a damaged document's error; `trial_id` if the document is the trial's spec."""
        try:
            yield
        except TornError as error:
            raise TornError(f"{error}; {self._remedy(trial_id)}") from None

    def _remedy(self, trial_id: str | None) -> str:
        # A trial that is missing from the run's list is still in the sweep
        if self.is_own_script:
            return _WATCH_AGAIN
        sweep = "" if trial_id is None or self._knows(trial_id) else f"{shlex.quote(str(self.folder.sweep))} "
        return f"to set the trial aside and run it again: {_resuming(self.folder, sweep)}"

    def spec(self, trial_id: str) -> TrialSpec:
        """Read the spec of trial `trial_id`.

        Raises UserError: its file is damaged, or newer than this version.
        """
        path = self.folder.trial(trial_id).spec
        entry = None if path.exists() else self.asked.get(trial_id)
        with self._suggest_remedy(trial_id):
            return self._spec(entry["trial"] if entry else read_json(path), path)

    def spec_to_run(self, trial_id: str) -> TrialSpec:
        """Read the spec of a trial to run, from the run's list of specs if its own file is damaged.

        Raises UserError as `spec` does, if the list does not have it either.
        """
        try:
            return self.spec(trial_id)
        except TornError:
            if not self._knows(trial_id):
                raise
            return self._spec(self.asked[trial_id]["trial"], self.folder.asked)

    def _knows(self, trial_id: str) -> bool:
        """Return whether the run's list of specs is readable and has the trial."""
        try:
            return trial_id in self.asked
        except UserError:
            return False

    def _spec(self, fields: Document, path: Path) -> TrialSpec:
        """Parse the spec `fields`, read from `path`."""
        document = fields | {"schema_version": self.written_version}
        keys = {name: f"{name} {document[name]!r}" for name in _ALIKE if name in document}
        known = {name: self._parts[key] for name, key in keys.items() if key in self._parts}
        spec = parse(document | known, TrialSpec, path)
        self._parts.update({key: getattr(spec, name) for name, key in keys.items() if name not in known})
        # Which fields were given takes as much memory as all that they say, and is the same in most specs of a run.
        given = self._given.setdefault(frozenset(spec.model_fields_set), spec.model_fields_set)
        object.__setattr__(spec, "__pydantic_fields_set__", given)
        return spec

    @cached_property
    def asked(self) -> dict[str, Document]:
        """The run's list of specs, by trial id; read on first use.

        Raises UserError: it is damaged.
        """
        return read_asked(self.folder)

    def pending(self) -> list[str]:
        """Ids of planned trials without a record: they have not run, or are running."""
        ids = (entry.trial_id for entry in self.plan.trials)
        return [trial_id for trial_id in ids if not self.folder.trial(trial_id).record.exists()]


def load_run(path: Path) -> Run:
    """Load the run in folder `path`; trials are read on demand.

    Raises UserError: `path` is no run folder, or one of its files is damaged or newer than this version.
    """
    folder = RunFolder(path)
    if not folder.plan.is_file():
        raise UserError(f"{path}: not a run folder: it has no {folder.plan.name}")
    try:
        document, sweep, began_on = read_json(folder.plan), read_sweep(folder.sweep), read_json(folder.environment)
    except TornError as error:
        raise TornError(f"{error}; {_rewrite_remedy(folder)}") from None
    return Run(folder, parse(document, Plan, folder.plan), sweep, began_on, document["schema_version"])


def _rewrite_remedy(run: RunFolder) -> str:
    """Command that restores complete documents of a run (launch/run/mending.py)."""
    with suppress(UserError):
        if is_own_script(read_sweep(run.sweep)):
            return _WATCH_AGAIN
    return f"to write it anew: {_resuming(run)}"


def _resuming(run: RunFolder, sweep: str = "") -> str:
    """Command that resumes a run, with `sweep` again if needed."""
    verb = "submit" if run.submission.exists() else "run"
    return f"zerobench {verb} {sweep}--resume {shlex.quote(str(run.path))}"


def is_own_script(sweep: Document) -> bool:
    """Return whether a run's sweep document describes a user's own script: watched or tracked, not a sweep."""
    return not {"command", "tracked"}.isdisjoint(sweep)


def read_asked(run: RunFolder) -> dict[str, Document]:
    """Read the run's list of specs, by trial id; empty without a list.

    Raises UserError: it is damaged.
    """
    if not run.asked.exists():
        return {}
    try:
        documents = [_parse_json(line) for line in run.asked.read_bytes().splitlines()]
        return {document["trial_id"]: document for document in documents}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{run.asked}: torn or corrupt: {' '.join(str(error).split())}") from None


def find_run(name: str | None, reports: Path) -> Path:
    """Find the run folder that `name` means: a path, a folder under `reports`, the newest there of a sweep or script of
    that name, or with None the newest of all.

    Raises UserError if there is none.
    """
    if name is None:
        return latest_run(reports)
    for candidate in (Path(name), reports / name):
        if (candidate / "plan.json").is_file():
            return candidate
    known = [path.name for path in runs_under(reports)]
    of_that_name = [run for run in known if run.rpartition("_")[0] == name]
    if of_that_name:
        return reports / of_that_name[-1]
    hint = choices_for(name, reversed(known), f"ls {reports}")
    raise UserError(f"RUN: {name!r} is not a run folder, nor a run under {reports}; {hint}")


def latest_run(reports: Path) -> Path:
    """Newest run folder under `reports`, by the time in its name.

    Raises UserError if there is none.
    """
    runs = runs_under(reports)
    if not runs:
        raise UserError(f"RUN: no run under {reports} yet; make one with: zerobench run quickstart")
    return runs[-1]


def latest_run_like(baseline: Run, reports: Path) -> Path:
    """Newest run folder under `reports` of the same sweep, or script, as `baseline`.

    Raises UserError: there is none, or the sweep of a newer run is damaged.
    """
    name = _sweep_name(baseline.sweep, baseline.run_id)
    for run in reversed(runs_under(reports)):
        if _sweep_name(read_sweep(RunFolder(run).sweep), run.name) == name:
            return run
    raise UserError(f"NEW: no run of {name} under {reports}, which the baseline is of; run it, or name a run")


def _sweep_name(sweep: Document, run_id: str) -> str:
    # A user's own script has no named sweep; its name is in the run's folder
    return str(sweep.get("name", run_id.rpartition("_")[0]))


def read_record(path: Path, model: type[Model]) -> Model:
    """Read the document at `path` as a `model`, upgraded if an older version wrote it.

    Raises UserError: the file is missing, damaged, or written by a newer version.
    """
    return parse(read_json(path), model, path)


def read_json(path: Path) -> Document:
    """Read the JSON object at `path`.

    Raises UserError: the file cannot be read or is no JSON object.
    """
    return _mapping(path, lambda: _parse_json(path.read_bytes()), "an object")


def _mapping(
    path: Path, read: Callable[[], Any], kind: str, torn: tuple[type[Exception], ...] = (ValueError, RecursionError)
) -> Document:
    """Result of `read` for the file at `path`, which is damaged if that raises one of `torn`."""
    try:
        document = read()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except torn as error:
        raise TornError(f"{path}: torn or corrupt: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise TornError(f"{path}: torn or corrupt: holds a {type(document).__name__}, not {kind}")
    return document


def _parse_json(content: bytes) -> Any:
    # Pydantic's parser takes half the time of json's; json reads the rest (half a surrogate pair). Only keys are
    # cached: sixteen thousand other strings, each in memory of its own, would outlive the records.
    if b"0" * 20 in content.translate(_DIGITS_AS_ZEROS):  # a search by pattern takes as long as all reading
        return json.loads(content, parse_int=_whole)
    try:
        return from_json(content, cache_strings="keys")
    except ValueError:
        return json.loads(content)


def _whole(digits: str) -> int:
    # No count, size or time is longer, and unbounded numbers have no mean
    if abs(value := int(digits)) >= 2**64:
        raise ValueError(f"the number {digits[:20]}... does not fit 64 bits")
    return value


def parse(document: Document, model: type[Model], path: Path) -> Model:
    """Parse `document`, read from `path`, as a `model` of the current schema version."""
    current = _upgrade(document, model, path)
    if "schema_version" not in model.model_fields:
        del current["schema_version"]
    return validated(model, current, str(path))


def _upgrade(document: Document, model: type[BaseModel], path: Path) -> Document:
    version = document.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise UserError(f"{path}: schema_version: {version!r} is not a whole number")
    if version > SCHEMA_VERSION:
        raise UserError(
            f"{path}: schema_version: {version} is newer than this zerobench reads (up to {SCHEMA_VERSION});"
            " upgrade zerobench"
        )
    current = dict(document)
    for step in range(version, SCHEMA_VERSION):
        upgrade = UPGRADES[model].get(step)
        if upgrade is None:
            raise UserError(f"{path}: schema_version: {version} is not known; choices: 1 to {SCHEMA_VERSION}")
        current = {**upgrade(current), "schema_version": step + 1}
    return current


def _check_belongs(folder: TrialFolder, record: TrialRecord, ranks: tuple[RankRecord, ...]) -> None:
    # A folder that was copied over another, or lost files, must not pass for a measurement
    for path, trial_id in [
        (folder.record, record.trial_id),
        *((folder.rank_record(r.rank), r.trial_id) for r in ranks),
    ]:
        if trial_id != folder.path.name:
            raise TornError(f"{path}: trial_id: {trial_id!r} does not belong in folder {folder.path.name!r}")
    if len(ranks) < record.ranks_reported:
        numbers = {rank.rank for rank in ranks}
        lost = [rank for rank in range(record.ranks_expected) if rank not in numbers]
        paths = ", ".join(folder.rank_record(rank).name for rank in lost)
        raise TornError(
            f"{folder.path}: {len(ranks)} of {counted(record.ranks_reported, 'rank record')} left;"
            f" missing among: {paths}"
        )


def read_sweep(path: Path) -> Document:
    """Read the sweep. Raises UserError: the file cannot be read or is no YAML mapping."""
    import yaml  # noqa: PLC0415 -- only here, and `--help` must not wait for it

    from zerobench.config.trial.plain import load_bounded  # noqa: PLC0415 -- as above

    def read() -> Any:
        return load_bounded(path.read_text(encoding="utf-8"), yaml.SafeLoader)

    return _mapping(path, read, "a mapping", (ValueError, RecursionError, OverflowError, yaml.YAMLError))


def runs_under(reports: Path) -> list[Path]:
    """Run folders directly under `reports`, oldest first."""
    return sorted((plan.parent for plan in reports.glob("*/plan.json")), key=_began)


def _began(run: Path) -> tuple[float, str]:
    """Time of the run's start: from its name, which survives copying and git; else its plan's time."""
    stamp = run.name.rpartition("_")[2][:15]
    try:
        return datetime.strptime(stamp, STAMP).astimezone().timestamp(), run.name
    except ValueError:
        return (run / "plan.json").stat().st_mtime, run.name
