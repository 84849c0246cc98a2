"""The decision of a run: which configuration it recommends, why, and what the runner-up costs.

`zerobench plan` and `tune` make it once and keep it with the run as decision.json, since a command knows what records
do not: the cluster's links, what a search left out, what was measured afterwards. Every reader takes it from there;
of a run without one, zerobench.report.explain.decisions makes it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pydantic import Field

from zerobench.common.units import format_bytes, format_count, format_seconds
from zerobench.records.folder import RunFolder, write_whole
from zerobench.records.records import SCHEMA_VERSION, Record
from zerobench.records.store import Run, read_record
from zerobench.report.explain.choice import Choice, is_surely_slower, token_s


class Decision(Record):
    """decision.json: the recommended configuration of a run."""

    schema_version: int = SCHEMA_VERSION
    trial_id: str | None = None
    """None where nothing fits with room."""
    configuration: str | None = None
    """Its name in the run's tables."""
    reason: str
    """Reason for the recommendation, or for none."""
    expected_tokens_per_s: float | None = None
    """Expected rate of all ranks; None where not known, or measured."""
    runner_up: str | None = None
    """The next best with its time and memory against the recommended one's; None without one."""
    judged: list[str] = Field(default_factory=list)
    """The trials that were chosen among: with others in the run, the decision is out of date."""

    @property
    def choice(self) -> str:
        """`zero1 (51.9 K tokens/s expected): 8 fit with 5% room, ...`; for a decision that recommends something."""
        tokens = self.expected_tokens_per_s
        speed = f" ({format_count(tokens)} tokens/s expected)" if tokens else ""
        return f"{self.configuration}{speed}: {self.reason}"


def sentence(decisions: Sequence[Decision]) -> str:
    """The decisions of a run, one for each kind of work, in one sentence; empty without any."""
    if not decisions:
        return ""
    if decisions[0].configuration is None:
        return f"No recommendation: {decisions[0].reason}."
    runner_up = decisions[0].runner_up if len(decisions) == 1 else None
    rival = f" Runner-up: {runner_up}." if runner_up else ""
    return f"Choose {'; '.join(one.choice for one in decisions)}.{rival}"


def decision_of(choice: Choice | None, why: str, judged: Sequence[str]) -> Decision:
    """The decision for `choice` among the trials `judged`; `why` precedes its reason, or stands alone without one."""
    if choice is None:
        return Decision(reason=why, judged=list(judged))
    best = choice.best
    return Decision(
        trial_id=best.spec.trial_id,
        configuration=best.label,
        reason=f"{why}; {choice.reason}" if why else choice.reason,
        expected_tokens_per_s=best.expected_tokens_per_s,
        runner_up=runner_up_words(choice),
        judged=list(judged),
    )


def runner_up_words(choice: Choice) -> str | None:
    """`zero2, 43.8 s (5% faster), 74.4 GiB (21.9 GiB more)`; None where nothing else fits with room."""
    best, rival = choice.best, choice.runner_up
    if rival is None:
        return None
    speed = ""
    if rival.expected is not None and best.expected is not None:
        ratio, is_sure = token_s(rival) / token_s(best), is_surely_slower(rival, best)
        speed = f"{format_seconds(rival.expected.step_s)} ({_slower(ratio, is_sure=is_sure)})"
    return _rival(rival.label, speed, rival.device_needed_bytes, best.device_needed_bytes)


def measured_rival(
    label: str, rates: tuple[float, float], needs: tuple[int | None, int | None], *, is_sure: bool
) -> str:
    """The rival's measured tokens/s and need, each given with the best's second."""
    speed = f"{format_count(rates[0])} tokens/s ({_slower(rates[1] / rates[0], is_sure=is_sure)})"
    return _rival(label, speed, *needs)


def _slower(ratio: float, *, is_sure: bool) -> str:
    """Time per token as a multiple of the best's, in words."""
    percent = round(100 * abs(ratio - 1))
    if percent < 1:
        return "as fast"
    words = f"{ratio:.1f} times as long" if ratio >= 2 else f"{percent}% {'slower' if ratio > 1 else 'faster'}"
    return words if is_sure else f"{words}, uncertain"


def _rival(label: str, speed: str, needed_bytes: int | None, best_bytes: int | None) -> str:
    memory = ""
    if needed_bytes is not None and best_bytes is not None:
        more = needed_bytes - best_bytes
        difference = f"{format_bytes(abs(more), 1)} {'more' if more > 0 else 'less'}" if more else "as much"
        memory = f"{format_bytes(needed_bytes, 1)} ({difference})"
    return ", ".join(part for part in (label, speed, memory) if part)


def keep(run: RunFolder, decision: Decision) -> None:
    """Store the decision with its run."""
    write_whole(run.decision, decision.model_dump_json(indent=2) + "\n")


def stored(run: Run, judged: Collection[str]) -> Decision | None:
    """The decision kept with `run`; None without one, or where the run's whole trials are no longer those `judged`.

    Raises UserError: its file is torn, corrupt or newer than this version.
    """
    if not run.folder.decision.exists():
        return None
    decision = read_record(run.folder.decision, Decision)
    return decision if set(decision.judged) == set(judged) else None
