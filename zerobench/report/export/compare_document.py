"""A comparison as plain values, for gates that are programs."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from zerobench.report.figures.compare.comparison import Comparison, SharedTrial, ended
from zerobench.report.figures.compare.memory import MemoryChange
from zerobench.report.tables.gate import Verdict, why


def comparison_document(comparison: Comparison, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Both runs, their trials side by side, and what each limit comes to."""
    return {
        "base": str(comparison.base.run.folder.path),
        "new": str(comparison.new.run.folder.path),
        "passed": all(verdict.passed for verdict in verdicts),
        "limits": [_verdict(verdict) for verdict in verdicts],
        "trials": [_trial(same) for same in comparison.same],
        "configuration_changed": [asdict(change) for change in comparison.configuration],
        "causes": why(comparison),
        "only_base": comparison.only_base,
        "only_new": comparison.only_new,
        "environment": [
            {"name": fact.name, "base": fact.base, "new": fact.new} for fact in comparison.facts if fact.differs
        ],
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "limit": verdict.limit.written,
        "passed": verdict.passed,
        "trials_judged": verdict.num_judged,
        "failures": verdict.failures,
        "not_judged": verdict.not_judged,
    }


def _trial(same: SharedTrial) -> dict[str, Any]:
    speed = same.speed
    return {
        "trial": same.label,
        "base_status": ended(same.base),
        "new_status": ended(same.new),
        "memory": [_memory(change) for change in same.memory],
        "speed": speed and {"verdict": speed.verdict, "ratio": speed.change.ratio, "p_value": speed.change.p_value},
    }


def _memory(change: MemoryChange) -> dict[str, Any]:
    place, step = change.where
    return {
        "place": place,
        "step": step.value,
        "base_bytes": change.base.instant.total_bytes,
        "new_bytes": change.new.instant.total_bytes,
        "more_bytes": change.more_bytes,
        "fraction": change.fraction,
        "categories": {str(difference.category): difference.more_bytes for difference in change.differences},
    }
