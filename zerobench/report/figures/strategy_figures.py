"""Figures of one side of a measured trial by itself, before it is compared: small, so that many can be held at once.

A trial has one side, its ranks, or two: a server is no rank among others and has figures of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zerobench.common.vocabulary import Place, StepKind
from zerobench.config.derived.roles import Role
from zerobench.config.trial.trial import Evidence
from zerobench.estimate.clock.links import Flow
from zerobench.records.instants import ModelStates, largest_model_states, largest_peak
from zerobench.records.records import RankRecord
from zerobench.records.trials import Trial, completed, roles
from zerobench.report.figures.moved import by_closed_form, counted
from zerobench.report.figures.speed import speed_of
from zerobench.report.figures.stats import median, median_absolute_deviation


@dataclass(frozen=True)
class SideFigures:
    """Figures of one side. Bytes of one rank in the steady step, seconds of a timed one. None: not available."""

    role: str
    num_ranks: int
    device_name: str
    num_params: int | None
    step_s: float | None
    """Median over the timed steps, the slowest rank of each; None on a server, whose step is that of its workers."""
    spread_s: float | None
    """Median distance of the steps from their median."""
    tokens_per_s: float | None
    sent_bytes: float | None
    """Bytes of the rank that sends most."""
    received_bytes: float | None
    formula_sent_bytes: float | None
    formula_received_bytes: float | None
    states: ModelStates | None
    """On the rank that holds most."""
    peak_bytes: int | None
    in_flight_fraction: float | None
    """Share of a step in which something is being communicated, under the profiler, of the rank where it is largest."""
    exposed_fraction: float | None
    """Share of it in which the rank moreover computes nothing."""
    wait_fraction: float | None
    """Share of a timed step that the strategy itself knows to have waited, of the rank that waited longest."""
    staleness: float | None
    """Mean staleness of all gradients, in updates; None where no server counted."""

    @property
    def is_server(self) -> bool:
        return self.role == Role.SERVER

    @property
    def states_bytes(self) -> int | None:
        """Parameters, gradients and optimizer states."""
        return None if self.states is None else self.states.total_bytes

    @property
    def sync_fraction(self) -> float | None:
        """Share of a step in which the rank waits or communicates and does nothing else: seen, else as it knows."""
        return self.wait_fraction if self.exposed_fraction is None else self.exposed_fraction


def side_figures(trial: Trial) -> Iterator[SideFigures]:
    """The sides of a measured trial that completed, those that train first; none of any other."""
    if not completed(trial) or trial.spec.evidence is not Evidence.MEASURED or trial.spec.own is not None:
        return
    for role in sorted(roles(trial), key=lambda role: role == Role.SERVER):
        yield _side(trial, role)


def _side(trial: Trial, role: str) -> SideFigures:
    ranks = [rank for rank in trial.ranks if rank.role == role]
    busiest = max(ranks, key=lambda rank: (counted(rank) or Flow()).out_bytes)
    moved, formula = counted(busiest), by_closed_form(trial.spec, busiest)
    trains = role != Role.SERVER
    speed = speed_of(trial) if trains else None
    peak = largest_peak(trial, StepKind.STEADY, Place.DEVICE, role)
    built = ranks[0].parameters
    return SideFigures(
        role=role,
        num_ranks=len(ranks),
        device_name=ranks[0].device_name,
        num_params=None if built is None else built.trainable,
        step_s=None if speed is None else speed.step_time_s_median,
        spread_s=None if speed is None else median_absolute_deviation([step.step_s for step in speed.steps]),
        tokens_per_s=None if speed is None else speed.tokens_per_s,
        sent_bytes=None if moved is None else moved.out_bytes,
        received_bytes=None if moved is None else moved.in_bytes,
        formula_sent_bytes=None if formula is None else formula.out_bytes,
        formula_received_bytes=None if formula is None else formula.in_bytes,
        states=largest_model_states(trial, role),
        peak_bytes=None if peak is None else peak.total_bytes,
        in_flight_fraction=_watched(ranks, "in_flight_s"),
        exposed_fraction=_watched(ranks, "exposed_s"),
        wait_fraction=_waited(ranks),
        staleness=_staleness(trial) if trains else None,
    )


def _staleness(trial: Trial) -> float | None:
    counted_by = [rank.staleness_steps for rank in trial.ranks if rank.staleness_steps]
    return sum(counted_by[0]) / len(counted_by[0]) if counted_by else None


def _watched(ranks: Sequence[RankRecord], name: str) -> float | None:
    """The largest over the ranks of the median share; None where nothing was seen to communicate."""
    if ranks[0].world_size == 1:
        return 0.0
    seen = [rank.communication for rank in ranks if any(step.calls for step in rank.communication)]
    if len(seen) < len(ranks):
        return None
    return _largest([[getattr(step, name) / step.step_s for step in steps] for steps in seen])


def _waited(ranks: Sequence[RankRecord]) -> float | None:
    timed = [[time for time in rank.step_times if time.wait_s is not None] for rank in ranks]
    return _largest([[(time.wait_s or 0.0) / time.step_s for time in times] for times in timed if times])


def _largest(of_ranks: Sequence[Sequence[float]]) -> float | None:
    return max((middle for shares in of_ranks if (middle := median(shares)) is not None), default=None)
