"""The decisions of runs: the one that a command stored, else made from the records by the same rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from zerobench.common.units import format_bytes
from zerobench.report.explain.candidates import Candidate, candidates, equally_fast, timed_groups
from zerobench.report.explain.choice import decide
from zerobench.report.explain.decision import Decision, decision_of, measured_rival, stored
from zerobench.report.figures.fit import ROOM
from zerobench.report.figures.run.runs import RunFigures

MOST_GROUPS = 2
"""Kinds of work that a summary decides on."""


def decisions(runs: RunFigures) -> list[Decision]:
    """Recommendations, one for each kind of work; empty where there is nothing to choose among."""
    kept = stored_decision(runs)
    if kept is not None:
        return [kept]
    known = candidates(runs)
    return decisions_among(known, timed_groups(known)) if len(runs.figures) > 1 else []


def stored_decision(runs: RunFigures) -> Decision | None:
    """The decision stored with a single run; None for several runs, or without a current one."""
    if len(runs.runs) != 1:
        return None
    return stored(runs.runs[0], [trial.trial_id for trial in runs.figures if trial.is_whole])


def decisions_among(known: Sequence[Candidate], groups: Mapping[str, Sequence[Candidate]]) -> list[Decision]:
    """Decide by measured times where there are any (`groups`), else by what is expected."""
    if groups:
        return [_measured(equally_fast(group), group) for group in islice(groups.values(), MOST_GROUPS)]
    return _expected(known)


def _measured(alike: Sequence[Candidate], group: Sequence[Candidate]) -> Decision:
    """The least memory among those that are equally fast within their spread."""
    first = alike[0]
    needs = "" if first.needed_bytes is None else f", {format_bytes(first.needed_bytes)} {first.needs_most}"
    if len(alike) > 1:
        reason = f"least device memory of {len(alike)} equally fast trials{needs}"
    else:
        reason = f"fastest{needs and f'{needs} of device memory'}"
    rest = [candidate for candidate in group if candidate is not first]
    rival = equally_fast(rest)[0] if rest else None
    return Decision(
        trial_id=first.figures.spec.trial_id,
        configuration=first.label,
        reason=reason,
        runner_up=None if rival is None else _measured_rival(rival, first),
    )


def _measured_rival(rival: Candidate, best: Candidate) -> str | None:
    if rival.tokens_per_s is None or best.tokens_per_s is None:
        return None
    rates, needs = (rival.tokens_per_s, best.tokens_per_s), (rival.needed_bytes, best.needed_bytes)
    return measured_rival(rival.label, rates, needs, is_sure=not rival.overlaps(best))


def _expected(known: Sequence[Candidate]) -> list[Decision]:
    """Without times: what `zerobench plan` recommends, by the same rule; empty unless all train one model."""
    fitting = [candidate for candidate in known if candidate.fits and not candidate.is_reference]
    if len({candidate.work.model for candidate in fitting}) != 1:
        return []
    choice = decide(candidate.figures for candidate in fitting)
    if choice is None:
        return [Decision(reason=f"nothing fits with {ROOM:.0%} free")]
    made = decision_of(choice, "", ())
    unjudged = "; host memory unknown" if choice.best.fit.host_unchecked else ""
    return [made.model_copy(update={"reason": made.reason + unjudged})]
