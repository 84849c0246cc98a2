"""One claim about distributed training, what was measured of it, and what of the rows claims speak of."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from zerobench.config.derived.batch import autotp_size
from zerobench.config.derived.strategy import is_exact
from zerobench.config.trial.trial import TrialSpec
from zerobench.report.figures.strategies.rows import ComparedSide
from zerobench.report.figures.strategy_figures import SideFigures

NEAR = 0.05
"""Largest distance of a figure from its claim: norms and flags are all-reduced beside what the papers count."""


class Verdict(StrEnum):
    """Verdict of the run on a claim."""

    HOLDS = "confirmed"
    FAILS = "not confirmed on this machine"
    UNJUDGED = "not testable"


@dataclass(frozen=True)
class Claim:
    """One claim and what was measured of it."""

    text: str
    verdict: Verdict
    measured: str
    """The numbers, or why there are none."""


Rows = Sequence[ComparedSide]


@dataclass(frozen=True)
class ClaimRows:
    """Rows that the claims are about: trials whose losses do not speak against them."""

    rows: Rows

    def of(self, *strategies: str) -> list[ComparedSide]:
        """Plain trials of `strategies` on several ranks, the most ranks of each, workers' sides."""
        largest: dict[str, ComparedSide] = {}
        for row in self.workers:
            if row.spec.strategy in strategies and _is_plain(row.spec) and row.spec.world_size > 1:
                best = largest.get(row.spec.strategy)
                if best is None or row.spec.world_size > best.spec.world_size:
                    largest[row.spec.strategy] = row
        return [largest[name] for name in strategies if name in largest]

    @property
    def workers(self) -> list[ComparedSide]:
        """The sides that train."""
        return [row for row in self.rows if row.is_believed and not row.figures.is_server]

    def row_of(self, strategy: str) -> ComparedSide | None:
        """The one of `strategy`."""
        return next(iter(self.of(strategy)), None)

    def ddp_like(self, row: ComparedSide) -> ComparedSide | None:
        """The plain trial of `ddp` on as many ranks as `row`, else on the most."""
        alike = (one for one in self.workers if one.spec.strategy == "ddp" and _is_plain(one.spec))
        return next((one for one in alike if one.spec.world_size == row.spec.world_size), self.row_of("ddp"))


def _is_plain(spec: TrialSpec) -> bool:
    """True for the strategy and nothing else: all weights trained, no AutoTP, ZeRO++ or MiCS, nothing lossy."""
    alone = autotp_size(spec) == 1 and not (spec.hpz_partition_size or spec.mics_shard_size)
    return is_exact(spec) and spec.trains_all and alone


def agrees_with_form(figures: SideFigures) -> bool:
    pairs = ((figures.sent_bytes, figures.formula_sent_bytes), (figures.received_bytes, figures.formula_received_bytes))
    return all(is_near(measured, form) for measured, form in pairs)


def is_near(measured: float | None, claimed: float | None) -> bool:
    return measured is not None and bool(claimed) and abs(measured / (claimed or 1) - 1) <= NEAR


def ratio(value: float | None, other: float | None) -> float | None:
    return value / other if value is not None and other else None


def judged(text: str, holds: bool, measured: str) -> Claim:
    return Claim(text, Verdict.HOLDS if holds else Verdict.FAILS, measured)


def judged_speed(text: str, holds: bool, measured: str, rows: Iterable[ComparedSide]) -> Claim:
    """A verdict on time, which is of the machine that took it: it is named."""
    machines = ", ".join(dict.fromkeys(row.figures.device_name for row in rows))
    return judged(text, holds, f"{measured} (on {machines})")


def unjudged(text: str, why: str) -> Claim:
    return Claim(text, Verdict.UNJUDGED, why)
