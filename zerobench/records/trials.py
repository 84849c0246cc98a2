"""One trial as reports see it: what was asked, how it ended, and its ranks.

`zerobench.records.store.Trial`, which is on disk, is one, and reads its ranks only when asked for them: a table of a
thousand trials reads those that it shows and the few that they are compared with.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Status
from zerobench.config.deepspeed import build_ds_config
from zerobench.config.deepspeed.case import Case
from zerobench.config.derived.roles import Role
from zerobench.config.models.architecture import has_dropout
from zerobench.config.models.parameters import ParameterCounts, count_parameters
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.records import store
from zerobench.records.records import ParameterTensor, RankRecord, TrialRecord


class Trial(Protocol):
    """A trial's record, on disk or in memory."""

    @property
    def spec(self) -> TrialSpec: ...

    @property
    def record(self) -> TrialRecord: ...

    @property
    def ranks(self) -> Sequence[RankRecord]:
        """Records of the ranks, by rank; empty if none reported."""
        ...


@dataclass(frozen=True, slots=True)
class _Curve:
    """Reduced rank record."""

    losses: Sequence[float]
    grad_norms: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class _Ending:
    """Reduced trial record."""

    status: Status
    recovery: None = None
    """Its losses are among those of the ranks."""


@dataclass(frozen=True, slots=True)
class PlainTrial:
    """A trial in memory: one that is in no run, or what is kept of one."""

    spec: TrialSpec
    record: TrialRecord
    ranks: Sequence[RankRecord]


def losses_alone(trial: Trial) -> PlainTrial:
    """`trial` without what makes it large: enough to compare its losses and gradients' norms with another's.

    A run of a hundred thousand trials holds one of these for each: its rank is the first that has losses, in eight
    bytes each, and has nothing else; its record has its `status`.
    """
    losses = recorded_losses(trial)
    curves = [_Curve(array("d", losses), recorded_grad_norms(trial))] if losses else []
    ending = _Ending(trial.record.status)
    return PlainTrial(trial.spec, cast("TrialRecord", ending), cast("Sequence[RankRecord]", curves))


def ended_trials(run: store.Run) -> Iterator[store.Trial]:
    """The trials of `run` that have ended, skipped ones included, in the plan's order, nothing of them read."""
    ended = (entry.trial_id for entry in run.plan.trials if run.folder.trial(entry.trial_id).record.exists())
    return (store.Trial(run, trial_id) for trial_id in ended)


def can_be_compared(trials: Iterable[Trial]) -> bool:
    """Return whether `trials` has both measured and predicted ones; else there are no pairs."""
    measured = {trial.spec.evidence is Evidence.MEASURED for trial in trials}
    return len(measured) == 2


@contextmanager
def refuse_impossible_values(where: Path) -> Iterator[None]:
    """Replace arithmetic errors (a byte count of four hundred digits) by a UserError about `where`.

    The schema accepts such values although no measurement yields them, and a report must not end in a traceback.
    """
    try:
        yield
    except (OverflowError, ValueError, ZeroDivisionError) as error:
        raise UserError(f"{where}: invalid value in a record: {' '.join(str(error).split())}") from None


def recorded_losses(trial: Trial) -> Sequence[float]:
    """Global mean loss of each step, from the first rank that recorded any.

    If a rank was killed on purpose, from the launch that ran to the end. Empty if unknown.
    """
    recovery = trial.record.recovery
    if recovery is not None and recovery.killed_at_s is not None:
        return recovery.losses
    return next((rank.losses for rank in trial.ranks if rank.losses), ())


def recorded_grad_norms(trial: Trial) -> Sequence[float | None]:
    """Global gradient norm of each step, from the first rank that recorded any.

    Empty if a rank was killed on purpose, since the launch that ran to the end keeps only losses.
    """
    recovery = trial.record.recovery
    if recovery is not None and recovery.killed_at_s is not None:
        return ()
    return next((rank.grad_norms for rank in trial.ranks if rank.grad_norms), ())


def completed(trial: Trial) -> bool:
    """Return whether the trial ran to its end, so that its figures cover all of the work."""
    return trial.record.status is Status.COMPLETED


def is_whole(trial: Trial) -> bool:
    """Return whether its figures cover all of the work: it completed, or did not fit and was repeated with enough
    memory.
    """
    failure = trial.record.failure
    return completed(trial) or (failure is not None and failure.bytes_needed is not None)


def roles(trial: Trial) -> list[str]:
    """Roles of the trial's ranks, in order of rank: one, or a server and its workers."""
    return list(dict.fromkeys(rank.role for rank in trial.ranks))


def workers(trial: Trial) -> list[RankRecord]:
    """Ranks that train: all but servers."""
    return [rank for rank in trial.ranks if rank.role == Role.WORKER]


def all_ranks_ran(trial: Trial) -> bool:
    """Return whether each rank was a process: true for `measured`, and for `solo` with one rank."""
    evidence = trial.spec.evidence
    return evidence is Evidence.MEASURED or (evidence is Evidence.SOLO and trial.spec.world_size == 1)


def parameters_built(trial: Trial) -> ParameterTensor | None:
    """Parameters of the model as its first rank built it; None if no rank did."""
    return next((rank.parameters for rank in trial.ranks if rank.parameters is not None), None)


def num_trained(trial: Trial) -> int | None:
    """Trained parameters; None if no rank built the model."""
    built = parameters_built(trial)
    return None if built is None else built.trainable


def parameter_counts(trial: Trial) -> ParameterCounts | None:
    """Parameters as the first rank built the model, else by the closed form; None if neither is known."""
    built = parameters_built(trial)
    if built is not None:
        return ParameterCounts.from_components(built.by_component)
    with _reading_config(trial.spec.model):
        return count_parameters(trial.spec.model)


def uses_dropout(trial: Trial) -> bool:
    """Return whether the trial's model has dropout, whose random numbers differ between strategies."""
    with _reading_config(trial.spec.model):
        return has_dropout(trial.spec.model)


@contextmanager
def _reading_config(model: ModelSpec) -> Iterator[None]:
    # A config without a key, or with text for a number, is the record's fault, not ours
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"model {model.name!r}: hf_config: no model can be built from it: {error!r}") from None


def num_params(trial: Trial) -> int | None:
    """All parameters of the trial's model; None if unknown."""
    counts = parameter_counts(trial)
    with _reading_config(trial.spec.model):
        return None if counts is None else counts.total


def case_of(trial: Trial) -> Case | None:
    """DeepSpeed configuration of `trial`, with its sizes; None without DeepSpeed, or if the user's own file is gone."""
    try:
        config = build_ds_config(trial.spec)
    except UserError:
        return None
    return Case(config, trial.spec.world_size, num_params(trial) or 0, num_trained=num_trained(trial))
