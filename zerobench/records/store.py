"""Reads a run back from disk: the one door between what a sweep left and every report over it.

Strict on purpose: a torn, corrupt or newer record is an error that names the file, because a table that silently
lacks a trial is worse than none. Older records are brought up to date by the functions in `UPGRADES`. Trials are read
one at a time, so a run of a hundred thousand costs no more memory than its largest trial.
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
"""How a run folder's name says when the run began: `<sweep>_<stamp>`."""

_WATCH_AGAIN = "start the script again with: zerobench watch"


def _one_name(text: str) -> str:
    """A plan that somebody sent must not lead out of its folder."""
    if _NAME.fullmatch(text) is None:
        raise ValueError("is not one plain name: letters, digits, dots, dashes and underscores, no dot first")
    return text


def _one_folder(text: str) -> str:
    """Looser: a run's folder may be called anything, but it is one folder."""
    if text in {"", ".", ".."} or any(character in text for character in "/\0\n"):
        raise ValueError("is not one plain name of a folder")
    return text


_NAME = re.compile(r"[\w-][\w.-]*", re.ASCII)
PlainName = Annotated[str, AfterValidator(_one_name)]
"""What names a folder or a file of a run; ids of trials stand in lists with spaces between them."""
FolderName = Annotated[str, AfterValidator(_one_folder)]


class TornError(UserError):
    """A document is not whole: cut short, overwritten, or lost."""


class PlanEntry(Record):
    """One trial of a run, in the order of the sweep; its spec lies in its folder."""

    trial_id: PlainName
    rule: str | None = None
    """For skipped trials: the name of the rule."""
    reason: str | None = None
    """For skipped trials: one line."""


class Plan(Record):
    """plan.json: what the run set out to do."""

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
"""For each kind of document: from schema version to the function that makes the next version's document of it.
A trial's spec carries no version; it has its run's (plan.json)."""


_ALIKE = ("model", "data", "hyperparameters", "steps", "prediction")
"""The parts of a trial's spec that its run's other trials mostly repeat, and that are frozen."""


@dataclass(frozen=True)
class Trial:
    """A trial that has ended, with all that it left."""

    folder: TrialFolder
    spec: TrialSpec
    record: TrialRecord
    ranks: tuple[RankRecord, ...]
    """By rank; fewer than expected where ranks died without a record."""


@dataclass(frozen=True)
class Run:
    """One invocation of a sweep, on disk."""

    folder: RunFolder
    plan: Plan
    sweep: Document
    """The sweep as asked."""
    began_on: Document
    """Versions, hardware and topology of the machine that began the run: it ran the trials, or submitted them."""
    written_version: int = SCHEMA_VERSION
    """The schema version that the run was written with."""
    _parts: dict[str, BaseModel] = field(default_factory=dict, repr=False, compare=False)
    """Parts that the specs of many trials have alike, by what they say: all of those specs share one."""
    _given: dict[frozenset[str], set[str]] = field(default_factory=dict, repr=False, compare=False)
    """The same of the fields that a spec's file gives."""

    @property
    def run_id(self) -> str:
        return self.plan.run_id

    @cached_property
    def nodes(self) -> dict[str, Document]:
        """The environment of each node that was recorded, by the name that the scheduler or the hostfile has for it.

        One that could not be recorded has `fault` in its place. Read when first asked for: the jobs of a large array
        open their run without it.

        Raises UserError: one is torn or corrupt.
        """
        return {path.stem: read_json(path) for path in sorted(self.folder.nodes.glob("*.json"))}

    @cached_property
    def environment(self) -> Document:
        """Versions, hardware and topology of what the trials ran on.

        Where nodes were recorded, that of the first of them that has GPUs, by name: what submits a run may have other
        versions and no GPU. Else that of the machine that began the run.
        """
        known = [node for _, node in sorted(self.nodes.items()) if "fault" not in node]
        return next((node for node in known if node.get("gpus")), next(iter(known), self.began_on))

    @property
    def submitted_from(self) -> Document | None:
        """The environment of the machine that began the run, where the trials ran on recorded nodes; else None."""
        return None if self.environment is self.began_on else self.began_on

    @property
    def began_at_s(self) -> Any:
        """Unix time at which the run was begun, by the clock of the machine that did; as environment.json has it."""
        return self.began_on.get("captured_at_s")

    def trials(self) -> Iterator[Trial]:
        """The trials that have ended, skipped ones included, in the plan's order, read one at a time.

        Raises UserError: a record is torn, corrupt, missing or newer than this version.
        """
        for entry in self.plan.trials:
            if self.folder.trial(entry.trial_id).record.exists():
                yield self.trial(entry.trial_id)

    def trial(self, trial_id: str) -> Trial:
        """The trial `trial_id`, which has ended.

        Raises UserError: a record of it is torn, corrupt, missing or newer than this version.
        """
        folder = self.folder.trial(trial_id)
        spec = self.spec(trial_id)
        with self._naming_the_way_out():
            record = read_record(folder.record, TrialRecord)
            ranks = tuple(read_record(path, RankRecord) for path in folder.rank_records())
            _check_belongs(folder, record, ranks)
        return Trial(folder, spec, record, ranks)

    def record(self, trial_id: str) -> TrialRecord:
        """How trial `trial_id` ended, and nothing of its ranks.

        Raises UserError: its record is torn, corrupt, missing or newer than this version.
        """
        with self._naming_the_way_out():
            return read_record(self.folder.trial(trial_id).record, TrialRecord)

    def status(self, trial_id: str) -> Status | None:
        """How trial `trial_id` ended; None where it did not, or a document of it is torn or lost.

        Of its spec and of ranks' records it is only seen that they are there and whole.
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
        """Whether the run is of a user's own script, and not of a sweep."""
        return is_own_script(self.sweep)

    @contextmanager
    def _naming_the_way_out(self, trial_id: str | None = None) -> Iterator[None]:
        """Have a torn document's error say how to come to a whole run; `trial_id` where it says what was asked."""
        try:
            yield
        except TornError as error:
            raise TornError(f"{error}; {self._way_out(trial_id)}") from None

    def _way_out(self, trial_id: str | None) -> str:
        """A trial that the run does not know any more, the sweep knows."""
        if self.is_own_script:
            return _WATCH_AGAIN
        sweep = "" if trial_id is None or self._knows(trial_id) else f"{shlex.quote(str(self.folder.sweep))} "
        return f"to set the trial aside and run it again: {_resuming(self.folder, sweep)}"

    def spec(self, trial_id: str) -> TrialSpec:
        """What trial `trial_id` was asked to do.

        Raises UserError: its file is torn, corrupt, or newer than this version.
        """
        path = self.folder.trial(trial_id).spec
        entry = None if path.exists() else self.asked.get(trial_id)
        with self._naming_the_way_out(trial_id):
            return self._spec(entry["trial"] if entry else read_json(path), path)

    def spec_to_run(self, trial_id: str) -> TrialSpec:
        """The same of a trial that is to run: where its own file is torn, as the run's list of what was asked has it.

        Raises UserError: as `spec`, and the list does not have it.
        """
        try:
            return self.spec(trial_id)
        except TornError:
            if not self._knows(trial_id):
                raise
            return self._spec(self.asked[trial_id]["trial"], self.folder.asked)

    def _knows(self, trial_id: str) -> bool:
        """Whether the run's list of what was asked can be read and has the trial."""
        try:
            return trial_id in self.asked
        except UserError:
            return False

    def _spec(self, fields: Document, path: Path) -> TrialSpec:
        """The spec that `fields`, which were read from `path`, make."""
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
        """What the list of what was asked has, by trial id; read when first asked for.

        Raises UserError: it is torn or corrupt.
        """
        return read_asked(self.folder)

    def pending(self) -> list[str]:
        """The ids of planned trials that have no record: they never ran, or run now."""
        ids = (entry.trial_id for entry in self.plan.trials)
        return [trial_id for trial_id in ids if not self.folder.trial(trial_id).record.exists()]


def load_run(path: Path) -> Run:
    """The run in folder `path`; trials are read when asked for.

    Raises UserError: `path` is no run folder, or one of its files is torn, corrupt or newer than this version.
    """
    folder = RunFolder(path)
    if not folder.plan.is_file():
        raise UserError(f"{path}: not a run folder: it has no {folder.plan.name}")
    try:
        document, sweep, began_on = read_json(folder.plan), read_sweep(folder.sweep), read_json(folder.environment)
    except TornError as error:
        raise TornError(f"{error}; {_way_to_write_anew(folder)}") from None
    return Run(folder, parse(document, Plan, folder.plan), sweep, began_on, document["schema_version"])


def _way_to_write_anew(run: RunFolder) -> str:
    """How one comes to whole documents of a run (launch/run/mending.py)."""
    with suppress(UserError):
        if is_own_script(read_sweep(run.sweep)):
            return _WATCH_AGAIN
    return f"to write it anew: {_resuming(run)}"


def _resuming(run: RunFolder, sweep: str = "") -> str:
    """The command with which a run goes on, `sweep` named again where it must be."""
    verb = "submit" if run.submission.exists() else "run"
    return f"zerobench {verb} {sweep}--resume {shlex.quote(str(run.path))}"


def is_own_script(sweep: Document) -> bool:
    """Whether a run is of a user's own script, and not of a sweep: then it says what was watched, or tracked."""
    return not {"command", "tracked"}.isdisjoint(sweep)


def read_asked(run: RunFolder) -> dict[str, Document]:
    """What the run's list of what was asked has, by trial id; nothing where there is no list.

    Raises UserError: it is torn or corrupt.
    """
    if not run.asked.exists():
        return {}
    try:
        documents = [_from_json(line) for line in run.asked.read_bytes().splitlines()]
        return {document["trial_id"]: document for document in documents}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{run.asked}: torn or corrupt: {' '.join(str(error).split())}") from None


def find_run(name: str | None, reports: Path) -> Path:
    """The run folder that `name` means: a path, a folder under `reports`, the newest there of a sweep or script of that
    name, or with None the newest of all.

    Raises UserError: there is none.
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
    """The newest run folder under `reports`, by the time in its name.

    Raises UserError: there is none.
    """
    runs = runs_under(reports)
    if not runs:
        raise UserError(f"RUN: no run under {reports} yet; make one with: zerobench run quickstart")
    return runs[-1]


def latest_run_like(baseline: Run, reports: Path) -> Path:
    """The newest run folder under `reports` of the sweep, or the script, that `baseline` is of.

    Raises UserError: there is none, or the sweep of a newer run is torn.
    """
    name = _sweep_name(baseline.sweep, baseline.run_id)
    for run in reversed(runs_under(reports)):
        if _sweep_name(read_sweep(RunFolder(run).sweep), run.name) == name:
            return run
    raise UserError(f"NEW: no run of {name} under {reports}, which the baseline is of; run it, or name a run")


def _sweep_name(sweep: Document, run_id: str) -> str:
    """A user's own script has no sweep with a name, and gives its own to the run's folder."""
    return str(sweep.get("name", run_id.rpartition("_")[0]))


def read_record(path: Path, model: type[Model]) -> Model:
    """The document at `path` as a `model`, brought up to date first if an older version wrote it.

    Raises UserError: the file is missing, torn, corrupt, or written by a newer version.
    """
    return parse(read_json(path), model, path)


def read_json(path: Path) -> Document:
    """The JSON object at `path`.

    Raises UserError: the file cannot be read or is no JSON object.
    """
    return _mapping(path, lambda: _from_json(path.read_bytes()), "an object")


def _mapping(
    path: Path, read: Callable[[], Any], kind: str, torn: tuple[type[Exception], ...] = (ValueError, RecursionError)
) -> Document:
    """What `read` makes of the file at `path`, which is torn or corrupt where that raises one of `torn`."""
    try:
        document = read()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except torn as error:
        raise TornError(f"{path}: torn or corrupt: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise TornError(f"{path}: torn or corrupt: holds a {type(document).__name__}, not {kind}")
    return document


def _from_json(content: bytes) -> Any:
    """Pydantic's reader takes half the time of json's, and json takes what that one refuses (half a surrogate pair).

    Of texts it keeps keys alone: sixteen thousand others, each in memory of its own, would outlive the records.
    """
    if b"0" * 20 in content.translate(_DIGITS_AS_ZEROS):  # a search by pattern takes as long as all reading
        return json.loads(content, parse_int=_whole)
    try:
        return from_json(content, cache_strings="keys")
    except ValueError:
        return json.loads(content)


def _whole(digits: str) -> int:
    """No count, size or time is longer, and a mean of numbers without bound is none."""
    if abs(value := int(digits)) >= 2**64:
        raise ValueError(f"the number {digits[:20]}... does not fit 64 bits")
    return value


def parse(document: Document, model: type[Model], path: Path) -> Model:
    """`document`, read from `path`, as a `model` of the current schema version."""
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
    """A folder that was copied over another, or lost files, must not pass for a measurement."""
    for path, trial_id in [
        (folder.record, record.trial_id),
        *((folder.rank_record(r.rank), r.trial_id) for r in ranks),
    ]:
        if trial_id != folder.path.name:
            raise TornError(f"{path}: trial_id: {trial_id!r} does not belong in folder {folder.path.name!r}")
    if len(ranks) < record.ranks_reported:
        held = {rank.rank for rank in ranks}
        lost = [rank for rank in range(record.ranks_expected) if rank not in held]
        paths = ", ".join(folder.rank_record(rank).name for rank in lost)
        raise TornError(
            f"{folder.path}: {len(ranks)} of {counted(record.ranks_reported, 'rank record')} left;"
            f" missing among: {paths}"
        )


def read_sweep(path: Path) -> Document:
    """The sweep as asked. Raises UserError: the file cannot be read or is no YAML mapping."""
    import yaml  # noqa: PLC0415 -- only here, and `--help` must not wait for it

    from zerobench.config.trial.plain import load_bounded  # noqa: PLC0415 -- as above

    def read() -> Any:
        return load_bounded(path.read_text(encoding="utf-8"), yaml.SafeLoader)

    return _mapping(path, read, "a mapping", (ValueError, RecursionError, OverflowError, yaml.YAMLError))


def runs_under(reports: Path) -> list[Path]:
    """Run folders directly under `reports`, oldest first."""
    return sorted((plan.parent for plan in reports.glob("*/plan.json")), key=_began)


def _began(run: Path) -> tuple[float, str]:
    """When `run` began: from its name, which survives copying and git; else its plan's time."""
    stamp = run.name.rpartition("_")[2][:15]
    try:
        return datetime.strptime(stamp, STAMP).astimezone().timestamp(), run.name
    except ValueError:
        return (run / "plan.json").stat().st_mtime, run.name
