"""Which setting would change a trial's peak, and by how much, where the closed forms can say it.

The closed forms are evaluated twice, as the trial is and with one setting changed, and the difference of the two peaks
is told. Where they miss the trial's own peak by more than FAR they say nothing; an effect that is smaller than that
error is not told either. Nothing is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zerobench.ds_config.case import Case
from zerobench.errors import UserError
from zerobench.formulas.record import formula_record
from zerobench.records import Place, StepKind
from zerobench.report.explain.category import knows_work
from zerobench.report.labels import brief
from zerobench.report.memory_causes import SMALLER_BUCKET
from zerobench.report.memory_view import Instant, peak_instant
from zerobench.report.trials import Trial, case_of
from zerobench.spec.trial import Offload, TrialSpec

FAR = 0.10
"""The closed forms are not asked what a setting does where they miss the peak itself by more."""
_TELLING = 0.005
"""An effect that is a smaller part of the peak is not told."""


@dataclass(frozen=True)
class Knob:
    """A setting changed, and what it makes of the steady peak."""

    text: str
    more_bytes: int
    """Of the closed forms' peak; below 0 where it becomes smaller."""


@dataclass(frozen=True)
class Knobs:
    """What the closed forms say of the steady peak of one trial."""

    formula_bytes: int
    error: float
    """(closed forms - seen) / seen."""
    effects: tuple[Knob, ...]
    """The largest saving first; empty where the closed forms are too far off."""


def knobs(trial: Trial, seen: Instant) -> Knobs | None:
    """The settings that would make the steady peak `seen` smaller; None for a trial without closed forms."""
    formula_bytes = formula_peak_bytes(trial.spec, seen.rank)
    if formula_bytes is None or not seen.total_bytes:
        return None
    error = formula_bytes / seen.total_bytes - 1
    if abs(error) > FAR:
        return Knobs(formula_bytes, error, ())
    least = max(abs(formula_bytes - seen.total_bytes), _TELLING * seen.total_bytes)
    effects = []
    for text, spec in _changes(trial):
        nbytes = formula_peak_bytes(spec, seen.rank)
        if nbytes is not None and formula_bytes - nbytes > least:
            effects.append(Knob(text, nbytes - formula_bytes))
    return Knobs(formula_bytes, error, tuple(sorted(effects, key=lambda knob: knob.more_bytes)))


def formula_peak_bytes(spec: TrialSpec, rank: int = 0, step: StepKind = StepKind.STEADY) -> int | None:
    """The device's peak in `step` by the closed forms; None where there are none for this model or strategy."""
    if not knows_work(spec):
        return None
    prediction = spec.prediction.model_copy(update={"rank": rank})
    try:
        record = formula_record(spec.model_copy(update={"prediction": prediction}))
    except UserError:
        return None
    peak = peak_instant(record, step, Place.DEVICE)
    return None if peak is None else peak.total_bytes


def _changes(trial: Trial) -> Iterator[tuple[str, TrialSpec]]:
    """Settings as a person writes them, and the trial with them; only those that it does not have yet."""
    spec, case = trial.spec, case_of(trial)
    if not spec.activation_checkpointing:
        yield "activation_checkpointing: true", _with(spec, activation_checkpointing=True)
    if spec.micro_batch_size > 1:
        half = spec.micro_batch_size // 2
        yield f"micro_batch_size: {half}", _with(spec, micro_batch_size=half)
    elif spec.sequence_length > 1:
        half = spec.sequence_length // 2
        yield f"sequence_length: {half}", _with(spec, sequence_length=half)
    if case is not None and spec.ds_config_file is None:
        yield from _of_deepspeed(spec, case)


def _of_deepspeed(spec: TrialSpec, case: Case) -> Iterator[tuple[str, TrialSpec]]:
    stage = case.stage
    if stage and case.bucket_elements > SMALLER_BUCKET:
        yield f"reduce_bucket_size: {brief(SMALLER_BUCKET)}", _with_keys(spec, {"reduce_bucket_size": SMALLER_BUCKET})
    if stage < 3 and spec.world_size > 1:
        yield f"strategy: zero{stage + 1}", _with(spec, strategy=f"zero{stage + 1}")
    if stage and spec.offload_optimizer is Offload.NONE:
        yield "offload_optimizer: cpu", _with(spec, offload_optimizer=Offload.CPU)
    if stage == 3 and spec.offload_param is Offload.NONE:
        yield "offload_param: cpu", _with(spec, offload_param=Offload.CPU)
    if stage == 3 and int(case.zero("stage3_max_live_parameters")):
        names = ("stage3_max_live_parameters", "stage3_prefetch_bucket_size", "stage3_max_reuse_distance")
        yield f"{', '.join(names)}: 0", _with_keys(spec, dict.fromkeys(names, 0))


def _with(spec: TrialSpec, **fields: Any) -> TrialSpec:
    return spec.model_copy(update=fields)


def _with_keys(spec: TrialSpec, keys: Mapping[str, Any]) -> TrialSpec:
    zero_keys = {f"zero_optimization.{name}": value for name, value in keys.items()}
    return _with(spec, ds_config={**spec.ds_config, **zero_keys})
