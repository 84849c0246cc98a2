"""Why a trial has no figures, in one line: the reason, the rule, where it happened, the bytes it was about."""

from __future__ import annotations

from zerobench.records import Failure, Status, TrialRecord
from zerobench.report.column_units import plain
from zerobench.units import format_bytes


def why_without_figures(record: TrialRecord) -> str:
    """Why the trial of `record` has no figures."""
    text = record.reason or (record.failure.message if record.failure else "no reason recorded")
    rule = f" (rule {record.rule})" if record.rule else ""
    detail = _detail(record.failure) if record.failure and record.status is not Status.SKIPPED else ""
    return plain(f"{text}{rule}{detail}")


def _detail(failure: Failure) -> str:
    """Where it happened and the bytes it was about, as far as they are known."""
    step = -1 if failure.step_index is None else failure.step_index  # below zero is start-up
    parts = [
        (failure.rank is not None, f"rank {failure.rank}"),
        (failure.phase is not None, str(failure.phase)),
        (step >= 0, f"step {step + 1}"),
        (failure.bytes_asked is not None, f"requested {format_bytes(failure.bytes_asked)}"),
        (failure.bytes_free is not None, f"free {format_bytes(failure.bytes_free)}"),
        (bool(failure.stacks), f"stacks of {len(failure.stacks)} ranks in the record"),
    ]
    known = [text for is_known, text in parts if is_known]
    return f" ({', '.join(known)})" if known else ""
