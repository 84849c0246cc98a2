"""The tables of a comparison, in a terminal and a pull request: what ran where, memory, speed, outcomes, the gate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zerobench.report.column_units import MISSING
from zerobench.report.compare.comparison import Comparison, Same, ended
from zerobench.report.compare.environment import Fact, hardware_warnings
from zerobench.report.compare.gate import Verdict, outcome
from zerobench.report.compare.memory_tables import memory_parts
from zerobench.report.compare.part import MOST_NAMED, Part, few, first
from zerobench.report.compare.speed_tables import speed_parts
from zerobench.report.grids import Grid
from zerobench.report.terminal.layout import Column, listed

_ALIKE = ("torch", "deepspeed", "transformers", "python", "CUDA of torch", "driver", "GPUs", "processor", "host")
"""What is worth a word where it is the same in both runs."""


def comparison_parts(comparison: Comparison, verdicts: Sequence[Verdict], width: int) -> Iterator[Part]:
    """All of it, for tables of `width` columns; the gate last, where a terminal's eye is."""
    yield _environment(comparison, width)
    yield from memory_parts(comparison, width)
    yield from speed_parts(comparison, width)
    yield from _outcomes(comparison, width)
    if verdicts:
        yield _gate(verdicts)


def comparison_markdown(comparison: Comparison, verdicts: Sequence[Verdict], width: int) -> str:
    """All of it as a document for a pull request, the gate first."""
    parts = list(comparison_parts(comparison, verdicts, width))
    ordered = [parts[-1], *parts[:-1]] if verdicts else parts
    return "\n".join(["## Memory and speed, before and after", "", *(line for p in ordered for line in p.markdown())])


def _environment(comparison: Comparison, width: int) -> Part:
    differing = [fact for fact in comparison.facts if fact.differs]
    columns = [
        Column[Fact]("what differs", "what differs", lambda fact: fact.name, is_text=True),
        Column[Fact]("BASE", "BASE", lambda fact: fact.base or MISSING, is_text=True),
        Column[Fact]("NEW", "NEW", lambda fact: fact.new or MISSING, is_text=True),
    ]
    return Part(
        "BASE and NEW",
        f"BASE: run {comparison.base.run.run_id}. NEW: run {comparison.new.run.run_id}. {_counts(comparison)}",
        Grid.of(columns, differing, width) if differing else None,
        [*_alike(comparison.facts), *comparison.shared],
        hardware_warnings(comparison.facts),
    )


def _counts(comparison: Comparison) -> str:
    same = len(comparison.same)
    alone = [(len(comparison.only_base), "BASE"), (len(comparison.only_new), "NEW")]
    return ", ".join([f"{same} trials in both", *(f"{count} in {side} only" for count, side in alone if count)]) + "."


def _alike(facts: Sequence[Fact]) -> list[str]:
    known = {fact.name: fact.base for fact in facts if not fact.differs and fact.base is not None}
    said = [f"{name} {known[name]}" for name in _ALIKE if name in known]
    return [f"the same in both: {', '.join(said)}"] if said else []


def _outcomes(comparison: Comparison, width: int) -> Iterator[Part]:
    changed = [same for same in comparison.same if ended(same.base) != ended(same.new)]
    columns = [
        Column[Same]("trial", "trial", lambda same: same.label, is_text=True),
        Column[Same]("BASE", "BASE", lambda same: ended(same.base), is_text=True),
        Column[Same]("NEW", "NEW", lambda same: ended(same.new), is_text=True),
        Column[Same]("why", "why", _why, is_text=True),
    ]
    lines = [
        f"in {side} only: {listed(names, MOST_NAMED)}"
        for side, names in (("BASE", comparison.only_base), ("NEW", comparison.only_new))
        if names
    ]
    warnings = [f"{same.label}: {outcome(same)}" for same in changed if same.stopped_completing]
    if changed or lines:
        shown, more = first(changed)
        caption = "Trials that ended in another way, and trials that one of the runs does not have."
        yield Part("Outcomes", caption, Grid.of(columns, shown, width) if changed else None, lines + more, warnings)


def _why(same: Same) -> str:
    return next((one.reason for one in (*same.new, *same.base) if one.reason and not one.completed), MISSING)


def _gate(verdicts: Sequence[Verdict]) -> Part:
    lines, warnings = [], []
    for verdict in verdicts:
        name, count = verdict.limit.written, verdict.num_judged
        lines.append(f"{name}: {_result(verdict)}, {count} {'trial' if count == 1 else 'trials'} judged")
        warnings += [f"{name}: {line}" for line in few(verdict.failures)]
        warnings += [f"{name}: not judged: {line}" for line in few(verdict.not_judged)]
    return Part("Gate", "", None, lines, warnings)


def _result(verdict: Verdict) -> str:
    if not verdict.passed:
        return "FAILED"
    return "passed" if verdict.num_judged else "CANNOT FIRE"
