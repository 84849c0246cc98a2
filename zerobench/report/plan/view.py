"""`zerobench plan` in the terminal: what each configuration needs, which one to take, and why not the others.

Everything is a prediction, and every table says so; nothing here was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from zerobench import store
from zerobench.records import Status
from zerobench.report.capacity import Capacity
from zerobench.report.choice import ROOM, RULE, UNDECIDED
from zerobench.report.column_units import plain, show_percent
from zerobench.report.environment_facts import Environment, predicted_with
from zerobench.report.labels import labels, shared_lines
from zerobench.report.plan.memory import memory_sections
from zerobench.report.plan.rows import PlanRow, evidence_words, recommended
from zerobench.report.plan.time import time_sections
from zerobench.report.plan.why import why_not
from zerobench.report.step_time.bound import step_bound
from zerobench.report.terminal.layout import Section, Shown, bullets
from zerobench.report.terminal.outcome_tables import outcome_sections
from zerobench.report.trials import completed, ended_trials, is_whole, refusing_impossible_values
from zerobench.spec.cluster import Cluster
from zerobench.spec.trial import Evidence, Optimizer, TrialSpec
from zerobench.units import format_bytes, format_seconds

NOT_INCLUDED = (
    "device: other processes on the GPU, what the driver keeps, fragmentation over many steps, saving checkpoints",
    "host: interpreter and libraries (some GB a rank), loading data, the page cache",
    "lower bound of the step: launching kernels, computing and communicating in each other's way, slow ranks, input",
)
"""What a plan says nothing of, a sentence each."""

NOT_IN_FORMULAS = "formula: what the allocator rounds and cannot give back; a plan without --formula knows it"
"""What a plan by formula says nothing of beside that."""

_BY = {
    Evidence.EMULATED.value: " on an emulated GPU",
    Evidence.SIMULATED.value: " by simulation",
    Evidence.FORMULA.value: " by formula",
}

MOST_REASONS = 5
"""Sentences that a losing row gets; the weightiest come first."""


def read_plan(path: Path, cluster: Cluster) -> tuple[list[Shown], list[PlanRow]]:
    """The trials of the run at `path` by their names, and a row for each whose figures are whole.

    Raises UserError: `path` is no run, or one of its records is torn.
    """
    trials = list(ended_trials(store.load_run(path)))
    shown = [Shown(trial, name, None) for trial, name in zip(trials, names([t.spec for t in trials]), strict=True)]
    rows = [plan_row(one, cluster) for one in shown if is_whole(one.trial)]
    return shown, rows


def plan_row(shown: Shown, cluster: Cluster) -> PlanRow:
    """A trial whose figures are whole, on the cluster."""
    return PlanRow(shown, capacity_of(cluster), step_bound(shown.trial, cluster.gpu, cluster.links))


def names(specs: Sequence[TrialSpec]) -> list[str]:
    """Names without the optimizer where the rest tells trials apart: it follows from the offload."""
    short = labels([_without_optimizer(spec) for spec in specs])
    hashes = {_without_optimizer(spec).config_hash for spec in specs}
    return short if len(hashes) == len(specs) else labels(specs)


def _without_optimizer(spec: TrialSpec) -> TrialSpec:
    return spec.model_copy(update={"optimizer": Optimizer.ADAMW})


def show_plan(path: Path, cluster: Cluster, console: Console, tokens: float | None = None) -> PlanRow | None:
    """Print the plan of the run at `path`; the recommended row, or None where nothing fits with room.

    Raises UserError: `path` is no run, or one of its records is torn.
    """
    with refusing_impossible_values(path):
        shown, rows = read_plan(path, cluster)
        best = recommended(rows)
        environment = store.load_run(path).environment
        sections = list(_sections(shown, rows, best, cluster, tokens, console.width, environment))
    for section in sections:
        section.print(console)
    return best


def _sections(
    shown: Sequence[Shown],
    rows: Sequence[PlanRow],
    best: PlanRow | None,
    cluster: Cluster,
    tokens: float | None,
    width: int,
    environment: Environment,
) -> Iterator[Section]:
    yield _header(shown, rows, environment)
    yield from memory_sections(rows, cluster, width)
    yield from time_sections(rows, tokens, width)
    yield from outcome_sections([one for one in shown if completed(one.trial) or not is_whole(one.trial)], width)
    if rows:
        yield recommendation(rows, best)
        yield from _losers(rows, best)
        yield from _bound_terms(best)
    by_formula = any(row.evidence is Evidence.FORMULA for row in rows)
    yield Section("What is not in it", "", bullets([*([NOT_IN_FORMULAS] if by_formula else []), *NOT_INCLUDED]))


def _header(shown: Sequence[Shown], rows: Sequence[PlanRow], environment: Environment) -> Section:
    plural = "" if len(rows) == 1 else "s"
    how = _BY.get(evidence_words(rows), "")
    counts = [f"{len(rows)} configuration{plural} predicted{how}, none measured"]
    skipped = sum(one.trial.record.status is Status.SKIPPED for one in shown)
    failed = len(shown) - len(rows) - skipped
    counts += [f"{skipped} skipped"] if skipped else []
    counts += [f"{failed} failed"] if failed else []
    specs = [_without_optimizer(one.trial.spec) for one in shown]
    lines = [Text(line) for line in (*shared_lines(specs), *predicted_with(environment, specs))]
    return Section("Plan", ", ".join(counts), lines=lines)


def recommendation(rows: Sequence[PlanRow], best: PlanRow | None) -> Section:
    """Which configuration to take, and the reason in a sentence."""
    text = _nothing_fits(rows) if best is None else _reason(rows, best)
    return Section("Recommended", "", lines=[Text(plain(text))])


def _reason(rows: Sequence[PlanRow], best: PlanRow) -> str:
    num_fitting = sum(row.has_room for row in rows)
    those = f"{num_fitting} fit with {ROOM:.0%} room, {RULE}" if num_fitting > 1 else "it alone fits with room"
    judged = "" if best.is_judged else "; host memory is not judged, since --host-memory does not say how much there is"
    room = f"{show_percent(best.room)} % of the scarcer memory stay free{judged}."
    return f"{best.shown.label}: {those}; {room}{_least_time(best, num_fitting)}"


def _least_time(best: PlanRow, num_fitting: int) -> str:
    """What its step takes at least, and that this is no reason to take it."""
    if best.bound is None or best.step_s is None:
        return " Nothing is known of the times."
    lacking = "" if best.is_bound_whole else ", terms left out"
    others = f"; {UNDECIDED}" if num_fitting > 1 else ""
    return f" Its step takes {format_seconds(best.step_s)} at least, by {best.bound.limited_by}{lacking}{others}."


def _nothing_fits(rows: Sequence[PlanRow]) -> str:
    nearest = max(rows, key=lambda row: row.room)
    needs = [
        f"{format_bytes(space.needed_bytes)} of {place} memory where there are {format_bytes(space.capacity_bytes)}"
        for place, space in (("device", nearest.device), ("host", nearest.host))
        if not space.has_room
    ]
    words = f"None of the {len(rows)} fits with {ROOM:.0%} room." if len(rows) > 1 else f"It lacks {ROOM:.0%} room."
    return f"{words} {nearest.shown.label}, the nearest, needs {' and '.join(needs)}."


def _losers(rows: Sequence[PlanRow], best: PlanRow | None) -> Iterator[Section]:
    """Why not the others, each held against the recommended one, or against the nearest where none fits."""
    held = best or max(rows, key=lambda row: row.room)
    told = [(row, _why_not(held, row)) for row in rows if row is not held]
    lines = [f"{row.shown.label}: {'; '.join(reasons[:MOST_REASONS])}" for row, reasons in told if reasons]
    if lines:
        yield Section(f"Why not the others, against {plain(held.shown.label)}", "", bullets(lines))


def _why_not(held: PlanRow, row: PlanRow) -> list[str]:
    return why_not(held.trial, row.trial, row.capacity, best_bound=held.bound, other_bound=row.bound)


def _bound_terms(best: PlanRow | None) -> Iterator[Section]:
    """How the recommended row's bound comes about, so that it can be checked by hand."""
    if best is not None and best.bound is not None and best.bound.terms:
        title = f"How the lower bound of {plain(best.shown.label)} comes about"
        yield Section(title, "", bullets(best.bound.terms))


def capacity_of(cluster: Cluster) -> Capacity:
    """What a GPU and a node of the cluster have."""
    return Capacity(cluster.device_memory_bytes, cluster.host_memory_bytes)
