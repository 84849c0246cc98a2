"""Expands a sweep into the ordered list of its trials on a machine, with those that cannot run and their reasons.

Points are normalised before they are compared, so that a sweep may multiply freely:

- `single` is one process that trains the same GLOBAL batch as the point's ranks together: it has the point's micro
  batch, so that activations compare, and accumulates over world_size times as many micro-batches. Axes that only apply
  to other strategies (offload, compression, consistency, ZeRO++, MiCS) are dropped, and CPUAdam becomes AdamW, which
  computes the same. With a checkpoint it is both the killed rank and the one that resumes. It is skipped together with
  the points that need it, if their ranks exceed the machine. A prediction has no losses and needs no reference: there
  `single` is a point like any other, with rank 0.
- Settings of one engine (axes.SETTINGS: ds_config for DeepSpeed, bucket_bytes for ddp, reshard_after_forward for fsdp)
  are dropped for every other strategy, and a key of ds_config that DeepSpeed reads only in other trials of the sweep
  for the rest (zerobench.config.deepspeed.obedience). Axes that change the work or the placement of states (offload,
  compression, consistency, ZeRO++, MiCS) are kept: a strategy that does not support them is listed as skipped.
- nvme_path is dropped if nothing is offloaded to NVMe, and is NOWHERE for predictions without a device, which write
  nothing.
- gpu only applies to emulated, simulated and formula trials, rank to those that run a single one; elsewhere they are
  dropped, and `exclude` and `--only` see none.

Points that then lead to the same trial are listed once. `single` trials come first, because the others are compared
with them; otherwise the order is that of the axes as written, all trials once before any is repeated.

A point for GPUs (see target) has the axes of the sweep, one for CPU ranks those that `on_cpu` replaces: measured on a
laptop's CPU and simulated on an H200, a sweep uses its small model for the one and its large model for the other. Those
of the machine's own kind come first.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from zerobench.common.errors import UserError, choices_for
from zerobench.config.axes.axes import DEFAULTS, LAYOUT, SETTINGS, STRATEGY_AXES, Grid
from zerobench.config.axes.axis_readers import ALL, AUTO, LAST, MAX_POINTS
from zerobench.config.deepspeed import drop_unread_keys
from zerobench.config.derived.machine import Accelerator, Machine
from zerobench.config.derived.strategy import axes_of, strategy_info
from zerobench.config.models.parameters import num_parameters
from zerobench.config.rules.rules import LAYOUT_RULES, RULES, Skip, find_skip
from zerobench.config.rules.situation import Situation
from zerobench.config.sweep.only import TRIAL_ID, keep, shown
from zerobench.config.sweep.precision import auto_precision
from zerobench.config.sweep.sweep import Sweep
from zerobench.config.sweep.target import Targets, auto_ranks, resolve_layout
from zerobench.config.trial.base import Spec
from zerobench.config.trial.batch_ramp import RampRequest
from zerobench.config.trial.checkpoint import CheckpointSpec
from zerobench.config.trial.optimizers import plain_optimizer
from zerobench.config.trial.plain import one_line
from zerobench.config.trial.trial import Evidence, Offload, PredictionSpec, TrialSpec

Point = dict[str, Any]
"""Every axis to its value, as the sweep writes it, the layout resolved."""

NOWHERE = "/nvme"
"""Swap folder of predicted trials."""

_RESOLVED = ("rank", "batch_ramp", "precision")
"""Axes whose `auto`, or a similar word, is resolved once the layout is known."""


class PlannedTrial(Spec):
    """A trial of the plan; it runs unless it is skipped."""

    trial: TrialSpec
    skipped: Skip | None = None

    def changed(self, **fields: Any) -> Self:
        """Copy with these fields of its trial."""
        return self.model_copy(update={"trial": self.trial.model_copy(update=fields)})

    def predicted_with(self, **fields: Any) -> Self:
        """Copy with these fields of its prediction."""
        return self.changed(prediction=self.trial.prediction.model_copy(update=fields))


@dataclass(frozen=True)
class _Candidate:
    """A trial, and the points of the sweep that lead to it."""

    trial: TrialSpec
    points: list[Point]


def expand(sweep: Sweep, machine: Machine) -> list[PlannedTrial]:
    """Expand `sweep` on `machine`, in the order in which trials run.

    Raises UserError if a layout is impossible, or `exclude` or `only` leave nothing.
    """
    candidates = _candidates(sweep, machine)
    repeats = sweep.file.repeats
    if len(candidates) * repeats > MAX_POINTS:
        raise UserError(f"{sweep.where}: repeats: {len(candidates)} trials x {repeats}; at most {MAX_POINTS} trials")
    skips = _skips(candidates, machine)
    planned = [
        PlannedTrial(trial=trial, skipped=skip)
        for repeat in range(repeats)
        for candidate, skip in zip(candidates, skips, strict=True)
        for trial in [candidate.trial.model_copy(update={"repeat": repeat}) if repeat else candidate.trial]
        if any(keep(sweep.only, point, trial.trial_id) for point in candidate.points)
    ]
    if not planned:
        raise _nothing_left(sweep, candidates)
    return planned


def _candidates(sweep: Sweep, machine: Machine) -> list[_Candidate]:
    """Trials of the sweep without duplicates, references first."""
    candidates: dict[tuple[Any, ...], _Candidate] = {}
    points = list(_points(sweep, machine))
    for point, trial in zip(points, drop_unread_keys([build_trial(point, sweep) for point in points]), strict=True):
        identity = (trial.config_hash, trial.evidence, trial.prediction, trial.nvme_path)
        candidates.setdefault(identity, _Candidate(trial, [])).points.append(point)
    if not candidates:
        raise UserError(f"{sweep.where}: exclude: drops every trial of the sweep")
    return sorted(candidates.values(), key=lambda candidate: not strategy_info(candidate.trial.strategy).is_reference)


def _points(sweep: Sweep, machine: Machine) -> Iterator[Point]:
    """Points of the grid that no `exclude` entry matches, then those of `include`."""
    targets = Targets(machine)
    kinds = sorted(Accelerator, key=lambda kind: kind is not machine.accelerator)
    for kind in kinds:
        for point in _multiplied(sweep.grids(kind).grid, kind, sweep, targets):
            if not any(_matches(point, entry, targets) for entry in sweep.exclude):
                yield point
    for kind in kinds:
        for grid in sweep.grids(kind).include:
            yield from _multiplied(grid, kind, sweep, targets)


def _multiplied(grid: Grid, kind: Accelerator, sweep: Sweep, targets: Targets) -> Iterator[Point]:
    """Points of `grid` for one kind of device."""
    for values in itertools.product(*grid.values()):
        point = DEFAULTS | dict(zip(grid, values, strict=True))
        try:
            point |= targets.prediction(point)
            target = targets.machine_of(point)
            if target.accelerator is not kind:
                continue
            point |= resolve_layout(point, target) | {"precision_is_auto": point["precision"] == AUTO}
            point |= {axis: _resolved(axis, point[axis], point, targets) for axis in _RESOLVED}
        except UserError as error:
            raise UserError(f"{sweep.where}: {error}") from None
        yield point


def _resolved(axis: str, value: Any, point: Mapping[str, Any], targets: Targets) -> Any:
    """Resolve `auto`, `last` and a ramp of the batch at `point`; other values stay."""
    if isinstance(value, RampRequest):
        least = point["world_size"] * point["micro_batch_size"] * point["sequence_length"]
        return value.resolve(least, least * point["gradient_accumulation_steps"])
    if value == AUTO and axis in LAYOUT:
        return auto_ranks(axis, targets.machine_of(point))
    if value == AUTO and axis == "gpu":
        return targets.own_gpu
    if value == AUTO and axis == "precision":
        return auto_precision(targets.machine_of(point))
    return point["world_size"] - 1 if value == LAST and axis == "rank" else value


def _matches(point: Mapping[str, Any], entry: Grid, targets: Targets) -> bool:
    """Return whether every axis of the entry has one of its values; for ds_config only the entry's keys count."""
    for axis, values in entry.items():
        if axis == "ds_config":
            if not any(value.items() <= point[axis].items() for value in values):
                return False
        elif point[axis] not in [_resolved(axis, value, point, targets) for value in values]:
            return False
    return True


def build_trial(point: Mapping[str, Any], sweep: Sweep) -> TrialSpec:
    """Build the trial of `point`, by the rules in the module's docstring."""
    axes = {axis: value for axis, value in point.items() if axis not in {"world_size", "gpu", "rank"}}
    rank = point["rank"] or 0
    info = strategy_info(axes["strategy"])
    if info.is_reference:
        axes |= _reference_axes(point)
        rank = 0
    own_axes = axes_of(info, point["pipeline_schedule"])
    axes |= {axis: DEFAULTS[axis] for axis in SETTINGS if axis not in own_axes}
    if Offload.NVME not in {axes["offload_optimizer"], axes["offload_param"]}:
        axes["nvme_path"] = None
    elif not point["evidence"].needs_device:
        axes["nvme_path"] = NOWHERE
    file = sweep.file
    return TrialSpec(
        **axes,
        prediction=PredictionSpec(rank=0 if rank == ALL else rank, gpu=point["gpu"], all_ranks=rank == ALL),
        data=file.data,
        hyperparameters=file.hyperparameters,
        steps=file.steps,
        timeout_s=file.timeout_s,
        trust_remote_code=file.trust_remote_code,
    )


def _reference_axes(point: Mapping[str, Any]) -> Point:
    """Axes that change for the single process with which the point's ranks are compared."""
    own_axes = strategy_info(point["strategy"]).axes
    return {
        **{axis: DEFAULTS[axis] for axis in STRATEGY_AXES if axis not in own_axes},
        "num_nodes": 1,
        "gpus_per_node": 1,
        "gradient_accumulation_steps": point["gradient_accumulation_steps"] * point["world_size"],
        "optimizer": plain_optimizer(point["optimizer"]).name,
        "checkpoint": _single_process_checkpoint(point["checkpoint"]),
    }


def _single_process_checkpoint(checkpoint: CheckpointSpec | None) -> CheckpointSpec | None:
    """Checkpoint of one process, which is both the killed rank and the one that resumes."""
    if checkpoint is None:
        return None
    fault = None if checkpoint.fault is None else checkpoint.fault.model_copy(update={"rank": 0})
    return checkpoint.model_copy(update={"fault": fault, "resume_world_size": None})


def _skips(candidates: Sequence[_Candidate], machine: Machine) -> list[Skip | None]:
    """Rule that each trial violates."""
    num_params: dict[str, int | None] = {}
    skips: list[Skip | None] = []
    for candidate in candidates:
        model = candidate.trial.model.model_dump_json()
        if model not in num_params:
            num_params[model] = num_parameters(candidate.trial.model)
        situation = Situation(candidate.trial, machine, num_params[model])
        skips.append(_needless(candidate, situation) or find_skip(situation))
    return skips


def _needless(candidate: _Candidate, situation: Situation) -> Skip | None:
    """Skip a reference if the machine has too few ranks for each point that needs it."""
    is_reference = strategy_info(candidate.trial.strategy).is_reference
    if not is_reference or candidate.trial.evidence is not Evidence.MEASURED:
        return None
    broken = []
    for point in candidate.points:
        layout = {axis: point[axis] for axis in ("num_nodes", "gpus_per_node")}
        at_point = replace(situation, trial=candidate.trial.model_copy(update=layout))
        broken.append(next(((name, why) for name in LAYOUT_RULES if (why := RULES[name](at_point))), None))
    first = broken[0]
    if first is None or None in broken:
        return None
    return Skip(rule=first[0], reason=f"the reference for {first[1]}")


def _nothing_left(sweep: Sweep, candidates: Sequence[_Candidate]) -> UserError:
    """Error for filters that no trial passes, with the available values."""
    for only in sweep.only:
        if only.axis == TRIAL_ID:
            values = list(dict.fromkeys(candidate.trial.trial_id for candidate in candidates))
            any_match = any(only.matches(candidate.points[0], candidate.trial.trial_id) for candidate in candidates)
        else:
            points = [point for candidate in candidates for point in candidate.points]
            values = list(dict.fromkeys(shown(only.axis, point) for point in points))
            any_match = any(only.matches(point, "") for point in points)
        if not any_match:
            patterns = ", ".join(only.patterns)
            hint = choices_for(patterns, values, "zerobench run SWEEP --dry-run", [])
            return UserError(one_line(f"--only: {only.axis}: no trial has {patterns!r}; {hint}"))
    filters = ", ".join(sweep.file.only)
    return UserError(one_line(f"--only: {filters!r}: no trial passes all of the filters"))
