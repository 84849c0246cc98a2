"""A sweep: a named grid of trials, read from a YAML file, with the changes of the command line.

    name: zero-stages               # names runs; the file's name by default
    description: one or more lines  # shown before the run
    axes:                           # each a value or a list; lists multiply, the last axis turning fastest
      (the axes)
    on_cpu:                         # axes that replace those above where ranks are CPU processes
      model: llama-20m
    exclude:                        # drops the points of the grid that match all axes of an entry;
      - {strategy: zero0, micro_batch_size: [1, 2]}   # a list matches any of its values
    include:                        # adds points after excluding
      - {strategy: zero3, ds_config: {}}
    data: {kind: synthetic}         # what follows is the same in every trial
    hyperparameters: {learning_rate: 3e-4}
    steps: {warmup: 2, timed: 5, memory: 1}   # and communication: steps under a profiler, 0 by default
    timeout_s: 900                  # seconds without progress of any rank, after which a trial counts as hung
    repeats: 1
    trust_remote_code: false
    only: []                        # filters, written as for --only

`model` and `strategy` are required; other axes have the defaults of TrialSpec, world_size and gpu are `auto`, rank 0.

Settings of one engine (ds_config for DeepSpeed, bucket_bytes for ddp, reshard_after_forward for fsdp) are dropped for
other strategies, and a DeepSpeed key that only other trials read (a stage 3 key at zero1) for trials that do not read
it, so one sweep may set up several engines; a key that no trial reads is refused with the reason. Settings that change
the work or the placement of states (offload, compression) are refused where a strategy does not support them. For a
file of your own, keys without effect are reported in a note, and refused only if DeepSpeed would fail or train
something else.

`evidence`, `gpu` and `rank` set how figures are obtained and are not part of the work: reports join a prediction and a
measurement of the same work. gpu does not apply to measured and solo trials, rank not to measured and formula ones, and
they are dropped there; a sweep with a gpu or rank that applies to no trial is refused. For a prediction on absent GPUs
`auto` is one node of eight, and more ranks use nodes of eight (see layout); it depends on nothing of this machine, so
that none is skipped for lack of GPUs, memory or compilers.

`exclude` is as in GitHub's CI matrices. `include` differs, because there it may also extend existing points, which is
hard to predict from reading the file: here every entry adds points of its own. An axis that an entry does not name has
its first value; one that it names is replaced entirely (`ds_config: {}` is DeepSpeed's own defaults, whatever the axis
has), and its lists multiply. evidence, gpu and rank keep all their values, since an entry adds work, which runs like
all other work. Points that lead to the same trial run once.

A list as the value of one DeepSpeed key is written in two brackets, since one bracket lists alternatives; `ds_config`
may also be a list of mappings, each an alternative as a whole. Relative paths start from the sweep file's folder, those
on the command line from the current one. Keys must be unique, and `5e8` is a number.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from zerobench.common.errors import UserError, choices_for, nearest, unknown_choice
from zerobench.common.resources import shipped
from zerobench.config.axes.axes import EVIDENCE_AXES, Grid, help_lines, read_grid, replace_axes
from zerobench.config.axes.axis_readers import AUTO, MAX_POINTS
from zerobench.config.derived.machine import Accelerator
from zerobench.config.sweep.only import Only, read_only
from zerobench.config.sweep.overlay import apply_sets, read_sets
from zerobench.config.sweep.paths import absolute_paths
from zerobench.config.sweep.sections import check_data, check_sections, refuse_booleans
from zerobench.config.trial.base import Spec, user_error
from zerobench.config.trial.plain import format_value, load_plain, one_line
from zerobench.config.trial.trial import DataSpec, Evidence, HyperparameterSpec, Positive, StepsSpec

__doc__ = (__doc__ or "").replace("      (the axes)", "\n".join(help_lines()))
"""With every axis, from its row: printed by `python -m pydoc zerobench.config.sweep.sweep`."""

_LARGEST_FILE_BYTES = 1_000_000
_LISTED_BY = "zerobench sweeps"


class SweepFile(Spec):
    """Contents of a sweep file as written, with absolute paths."""

    name: str = Field(min_length=1, max_length=100)
    description: str = ""
    axes: dict[str, Any]
    on_cpu: dict[str, Any] = Field(default_factory=dict)
    exclude: list[dict[str, Any]] = Field(default_factory=list)
    include: list[dict[str, Any]] = Field(default_factory=list)
    data: DataSpec = DataSpec()
    hyperparameters: HyperparameterSpec = HyperparameterSpec()
    steps: StepsSpec = StepsSpec()
    timeout_s: float = Field(default=900.0, gt=0, le=30 * 24 * 3600)
    repeats: Positive = Field(default=1, le=1000)
    trust_remote_code: bool = False
    only: list[str] = Field(default_factory=list)


@dataclass(frozen=True)
class Grids:
    """Axes read for one kind of machine: the grid, then one for each `include`."""

    grid: Grid
    include: tuple[Grid, ...]


@dataclass(frozen=True)
class Sweep:
    """A sweep with the command line's changes; all values have been checked."""

    file: SweepFile
    on_cuda: Grids
    on_cpu: Grids
    exclude: tuple[Grid, ...]
    only: tuple[Only, ...]
    where: str
    """Name of the sweep in errors: its file."""

    @property
    def name(self) -> str:
        """Name of the sweep and of its runs."""
        return self.file.name

    @property
    def description(self) -> str:
        return self.file.description

    def grids(self, accelerator: Accelerator) -> Grids:
        """Axes for trials on one kind of device."""
        return self.on_cuda if accelerator is Accelerator.CUDA else self.on_cpu

    @property
    def document(self) -> dict[str, Any]:
        """The sweep as plain values: written as YAML, `load_sweep` reads the same sweep from any folder."""
        return self.file.model_dump(mode="json", exclude_defaults=True)


def shipped_sweeps() -> dict[str, Path]:
    """Sweeps that ship with the package, by name."""
    return {path.stem: path for path in sorted(shipped("sweeps").glob("*.yaml"))}


def load_sweep(
    name: str | Path, sets: Sequence[str] = (), only: Sequence[str] = (), repeats: int | None = None
) -> Sweep:
    """Load the sweep file, or the shipped sweep, called `name`.

    `sets`: `axis=value,...` laid over the file (see overlay); `only`: filters (see only); `repeats`: runs of each
    trial. Raises UserError, one line, for an error in any of them.
    """
    path = find_sweep(str(name))
    where = f"sweep {name}" if str(name) in shipped_sweeps() else one_line(str(path))
    document = {"name": one_line(path.stem)[:100]} | _read(path, where)
    _validate(document, where)
    document = absolute_paths(document, path.resolve().parent)
    document = apply_sets(document, read_sets(sets, Path.cwd()), where)
    document["only"] = [*document.get("only", []), *only]
    if repeats is not None:
        document["repeats"] = repeats
    where = f"{where} with --set" if sets else where
    return _build(_validate(document, where), where)


def find_sweep(name: str, or_models: Iterable[str] = ()) -> Path:
    """Find the sweep file called `name`. Raises UserError, also for a near match of `or_models`, models that may be
    meant.
    """
    known = shipped_sweeps()
    if name in known:
        return known[name]
    try:
        path = Path(name).expanduser()
        if path.is_file():
            return path
        if path.is_dir():
            raise UserError(
                one_line(f"sweep: {name!r} is a folder, not a file; {choices_for(name, known, _LISTED_BY)}")
            )
    except (OSError, RuntimeError, ValueError):  # no such user, a zero byte, a name too long
        pass
    if "/" in name or name.endswith((".yaml", ".yml")):
        raise UserError(one_line(f"sweep: {name!r}: no such file; {choices_for(name, known, _LISTED_BY)}"))
    if (models := nearest(name, or_models)) and not nearest(name, known):
        raise UserError(f"{name!r} is neither a model nor a sweep; did you mean {' or '.join(models)}?")
    raise UserError(one_line(str(unknown_choice("sweep", name, known, _LISTED_BY))))


def _read(path: Path, where: str) -> dict[str, Any]:
    """Mapping in the file; a key without a value counts as absent."""
    try:
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            raise UserError(
                f"{where}: {path.stat().st_size} bytes, too large for a sweep; at most {_LARGEST_FILE_BYTES}"
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{where}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 text: {error.reason} at byte {error.start}") from None
    document = load_plain(text, where)
    if not isinstance(document, dict):
        raise UserError(f"{where}: a sweep is a mapping with the keys {', '.join(SweepFile.model_fields)}")
    return {key: value for key, value in document.items() if value is not None}


def _validate(document: dict[str, Any], where: str) -> SweepFile:
    for key in document:
        if key not in SweepFile.model_fields:
            raise UserError(one_line(f"{where}: {unknown_choice('field', key, SweepFile.model_fields)}"))
    check_sections(document, where)
    refuse_booleans(document, SweepFile, where)
    try:
        return SweepFile.model_validate(document)
    except ValidationError as error:
        value = error.errors(include_url=False)[0]["input"]
        shown = f" (got {format_value(value)})" if isinstance(value, dict | list) else ""  # user_error leaves these out
        raise UserError(one_line(f"{user_error(error, SweepFile, where)}{shown}")) from None


def _build(file: SweepFile, where: str) -> Sweep:
    axes = read_grid(file.axes, f"{where}: axes")
    for axis in ("model", "strategy"):
        if axis not in axes:
            raise UserError(f"{where}: axes: {axis} is missing; a sweep needs at least model and strategy")
    on_cpu = replace_axes(axes, read_grid(file.on_cpu, f"{where}: on_cpu"))
    check_data(file.data, where)
    include = [_entry(entry, f"{where}: include[{i}]") for i, entry in enumerate(file.include)]
    sweep = Sweep(
        file=file,
        on_cuda=_grids(axes, include, where),
        on_cpu=_grids(on_cpu, include, where),
        exclude=tuple(_entry(entry, f"{where}: exclude[{i}]") for i, entry in enumerate(file.exclude)),
        only=tuple(read_only(text) for text in file.only),
        where=where,
    )
    _refuse_idle_axes(sweep)
    return sweep


def _entry(axes: dict[str, Any], where: str) -> Grid:
    if not axes:
        raise UserError(f"{where}: {{}} is empty")
    return read_grid(axes, where)


def _grids(axes: Grid, include: Sequence[Grid], where: str) -> Grids:
    first = {axis: values if axis in EVIDENCE_AXES else values[:1] for axis, values in axes.items()}
    grids = Grids(axes, tuple(replace_axes(first, entry) for entry in include))
    for i, grid in enumerate(grids.include):
        points = math.prod(len(values) for values in grid.values())
        if points > MAX_POINTS:
            raise UserError(f"{where}: include[{i}]: the lists multiply to {points} points; at most {MAX_POINTS}")
    return grids


def _refuse_idle_axes(sweep: Sweep) -> None:
    """Raise UserError for a gpu or a rank that no trial of the sweep can have: a prediction was meant."""
    grids = [
        grid for kind in Accelerator for section in [sweep.grids(kind)] for grid in (section.grid, *section.include)
    ]
    evidences = {evidence for grid in grids for evidence in grid.get("evidence", [Evidence.MEASURED])}
    takers: dict[str, tuple[object, list[Evidence]]] = {
        "gpu": (AUTO, [evidence for evidence in Evidence if not evidence.needs_device]),
        "rank": (0, [evidence for evidence in Evidence if evidence.plays_one_rank]),
    }
    for axis, (usual, able) in takers.items():
        values = [value for grid in grids for value in grid.get(axis, []) if value not in {None, usual}]
        if values and not evidences & set(able):
            present = ", ".join(evidence for evidence in Evidence if evidence in evidences)
            raise UserError(
                f"{sweep.where}: {axis}: {values[0]} does not apply to evidence {present}; choices: "
                f"{', '.join(able)} (--set evidence={Evidence.SIMULATED}), or drop it (--set "
                f"{axis}={usual})"
            )
