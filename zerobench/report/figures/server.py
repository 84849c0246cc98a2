"""The two sides of a parameter server: what each holds, waits for and moves, the server's side apart from the workers'.

A server is a rank with a record of its own. It is none of the ranks that others' figures are of: it holds other things,
and its step is made of other parts.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Place, StepKind
from zerobench.config.derived.parameter_server import bytes_per_step
from zerobench.config.derived.roles import Role, num_workers
from zerobench.estimate.clock.collectives import bytes_per_element
from zerobench.records.instants import Instant, ModelStates, largest_model_states, largest_peak
from zerobench.records.records import RankRecord
from zerobench.records.trials import Trial, completed, roles
from zerobench.report.figures.speed import full_batch_values
from zerobench.report.figures.stats import median


@dataclass(frozen=True)
class Side:
    """One side of a trial with a server. None: not available."""

    role: str
    num_ranks: int
    peak: Instant | None
    """Device memory of a steady step, on the side's fullest rank."""
    states: ModelStates | None
    step_s: float | None
    """Median over the timed steps and the side's ranks."""
    wait_s: float | None
    """The part of it that waits for the other side."""
    sent_bytes: int | None
    """Bytes sent by one rank in the steady step; None where nobody counted, as in TensorFlow's own gRPC."""
    received_bytes: int | None
    formula_bytes: int | None
    """Bytes sent and received together by Li et al. (config/derived/parameter_server.py)."""
    staleness: Sequence[int] | None
    """Staleness of each gradient that was applied, in updates; None for workers, and where there were none."""

    @property
    def peak_bytes(self) -> int | None:
        """Bytes at the peak."""
        return None if self.peak is None else self.peak.total_bytes

    @property
    def wait_fraction(self) -> float | None:
        """Waiting time over step time."""
        return self.wait_s / self.step_s if self.wait_s is not None and self.step_s else None

    @property
    def mean_staleness(self) -> float | None:
        """Mean over all gradients."""
        return sum(self.staleness) / len(self.staleness) if self.staleness else None

    @property
    def staleness_text(self) -> str | None:
        """`0 x2, 1 x10`: how many gradients were how stale."""
        if not self.staleness:
            return None
        return ", ".join(f"{stale} x{count}" for stale, count in sorted(Counter(self.staleness).items()))


def sides(trial: Trial) -> list[Side]:
    """The sides of a completed trial that has a server, the server first; empty for all others."""
    present = roles(trial)
    return [_side(trial, role) for role in present] if completed(trial) and Role.SERVER in present else []


def _side(trial: Trial, role: str) -> Side:
    ranks = [rank for rank in trial.ranks if rank.role == role]
    times = [time for rank in ranks for time in full_batch_values(trial, rank.step_times)]
    waits = [time.wait_s for time in times if time.wait_s is not None]
    return Side(
        role=role,
        num_ranks=len(ranks),
        peak=largest_peak(trial, StepKind.STEADY, Place.DEVICE, role),
        states=largest_model_states(trial, role),
        step_s=median([time.step_s for time in times]),
        wait_s=median(waits),
        sent_bytes=_moved(ranks[0], "send"),
        received_bytes=_moved(ranks[0], "recv"),
        formula_bytes=_formula_flow(trial, ranks[0]),
        staleness=ranks[0].staleness_steps,
    )


def _moved(rank: RankRecord, kind: str) -> int | None:
    if not rank.collectives:
        return None
    return sum(row.message_bytes for row in rank.collectives if row.step is StepKind.STEADY and row.kind == kind)


def _formula_flow(trial: Trial, rank: RankRecord) -> int | None:
    if rank.parameters is None:
        return None
    weights = rank.parameters.trainable * bytes_per_element(trial.spec.precision)
    return bytes_per_step(weights, num_workers(trial.spec), Role(rank.role))


def side_sentences(trial: Trial) -> Iterator[str]:
    """Sentences on whose peak is whose, for readers of figures that know no sides."""
    for side in sides(trial):
        if side.peak is not None:
            who = "the server" if side.role == Role.SERVER else "a worker"
            yield (
                f"device peak of {who} (rank {side.peak.rank}): {format_bytes(side.peak.total_bytes)}; "
                "the trial's peak is the larger of both sides"
            )
