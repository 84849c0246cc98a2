"""How a trial's figures came to be, in the words that every table has."""

from __future__ import annotations

from zerobench.spec.trial import Evidence


def evidence_text(evidence: str, gpu: str | None) -> str:
    """`measured`, `predicted (solo)`, `predicted (simulated on H200 SXM)`."""
    if evidence == Evidence.MEASURED.value:
        return evidence
    return f"predicted ({evidence}{f' on {gpu}' if gpu else ''})"
