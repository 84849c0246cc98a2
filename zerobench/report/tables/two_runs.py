"""What two runs ran on and how their trials ended, and what the gate says: the document of `zerobench compare`."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from zerobench.common.units import counted
from zerobench.common.vocabulary import Status
from zerobench.report.figures.compare.comparison import Comparison, SharedTrial, ended
from zerobench.report.figures.compare.environment import Fact, hardware_warnings
from zerobench.report.figures.notes import listed
from zerobench.report.tables.gate import (
    Verdict,
    changed_configuration,
    gate_sentence,
    headline,
    outcome,
    why,
    worst_of,
)
from zerobench.report.tables.model import Column
from zerobench.report.tables.part import MOST_NAMED, Listing, Part, few, first
from zerobench.report.tables.two_runs_memory import memory_parts
from zerobench.report.tables.two_runs_speed import speed_parts
from zerobench.report.words.column_units import MISSING

_ALIKE = ("torch", "deepspeed", "transformers", "python", "CUDA of torch", "driver", "GPUs", "processor", "host")
"""What is worth a word where it is the same in both runs."""


TITLE = "Memory and speed, before and after"
SUMMARY = "Summary"


def comparison_parts(comparison: Comparison, *, details: bool = True) -> Iterator[Part]:
    """All of it but the gate; without `details` less the categories of each peak."""
    yield _environment(comparison)
    yield from islice(memory_parts(comparison), None if details else 1)
    yield from speed_parts(comparison)
    yield from _outcomes(comparison)


def document_parts(comparison: Comparison, verdicts: Sequence[Verdict]) -> list[Part]:
    """All of it for a file: the answer, which is last in the terminal, where the eye is, comes first."""
    answer = answer_part(comparison, verdicts)
    return [replace(answer, text=(), points=[*map(str, answer.text), *answer.points]), *comparison_parts(comparison)]


def answer_part(comparison: Comparison, verdicts: Sequence[Verdict]) -> Part:
    """What the comparison comes to: a gate's verdict with what changed and why, or without a gate the worst of it."""
    if not verdicts:
        return Part(SUMMARY, text=headline(comparison, verdicts))
    return gate_part(verdicts, changed_configuration(comparison), why(comparison))


def _environment(comparison: Comparison) -> Part:
    differing = [fact for fact in comparison.facts if fact.differs]
    columns: list[Column[Fact]] = [
        Column("difference", lambda fact: fact.name, narrow="difference", is_text=True),
        Column("BASE", lambda fact: fact.base or MISSING, narrow="BASE", is_text=True),
        Column("NEW", lambda fact: fact.new or MISSING, narrow="NEW", is_text=True),
    ]
    return Part(
        "BASE and NEW",
        f"BASE: run {comparison.base.run.run_id}. NEW: run {comparison.new.run.run_id}. {_counts(comparison)}",
        Listing(columns, differing) if differing else None,
        points=[*_alike(comparison.facts), *comparison.shared],
        warnings=hardware_warnings(comparison.facts),
    )


def _counts(comparison: Comparison) -> str:
    skipped = sum(ended(pair.base) == ended(pair.new) == Status.SKIPPED.value for pair in comparison.same)
    same = len(comparison.same) - skipped
    others = {"skipped in both": skipped, "in BASE only": len(comparison.only_base)}
    others |= {"in NEW only": len(comparison.only_new)}
    counts = [f"{counted(same, 'trial')} in both", *(f"{count} {where}" for where, count in others.items() if count)]
    return f"{', '.join(counts)}."


def _alike(facts: Sequence[Fact]) -> list[str]:
    known = {fact.name: fact.base for fact in facts if not fact.differs and fact.base is not None}
    texts = [f"{name} {known[name]}" for name in _ALIKE if name in known]
    return [f"same in both: {', '.join(texts)}"] if texts else []


def _outcomes(comparison: Comparison) -> Iterator[Part]:
    changed = [same for same in comparison.same if ended(same.base) != ended(same.new)]
    columns: list[Column[SharedTrial]] = [
        Column("trial", lambda same: same.label, narrow="trial", is_text=True),
        Column("BASE", lambda same: ended(same.base), narrow="BASE", is_text=True),
        Column("NEW", lambda same: ended(same.new), narrow="NEW", is_text=True),
        Column("why", _why, narrow="why", is_text=True),
    ]
    alone = {"BASE": comparison.only_base, "NEW": comparison.only_new}
    lines = [f"in {side} only: {listed(names, MOST_NAMED)}" for side, names in alone.items() if names]
    warnings = [f"{same.label}, {outcome(same)}" for same in changed if same.stopped_completing]
    if changed or lines:
        shown, more = first(changed)
        caption = "Trials with different outcomes, or in one run only."
        table = Listing(columns, shown) if changed else None
        yield Part("Outcomes", caption, table, points=lines + more, warnings=warnings)


def _why(same: SharedTrial) -> str:
    reasons = (repeat.reason for repeat in (*same.new, *same.base) if not repeat.completed)
    return next(filter(None, reasons), MISSING)


def gate_part(verdicts: Sequence[Verdict], changed: Sequence[str] = (), reasons: Sequence[str] = ()) -> Part:
    """What each limit says; the worst failure stands once, in the first line, what `changed` in the second."""
    worst = worst_of(verdicts)
    worst_line = worst.failures[0] if worst else None
    lines, warnings = [gate_sentence(verdicts), *changed, *reasons], []
    for verdict in verdicts:
        name, count = verdict.limit.written, verdict.num_judged
        result = "FAILED" if not verdict.passed else "passed" if count else "CANNOT FIRE"
        lines.append(f"{name}: {result}, {counted(count, 'trial')} judged")
        warnings += few([line for line in verdict.failures if line != worst_line])
        warnings += [f"not judged by {name}: {line}" for line in few(verdict.not_judged)]
    return Part("Gate", points=lines, warnings=list(dict.fromkeys(warnings)))
