"""Rows of a ledger: bytes of each category after each phase; a phase that is entered again keeps its larger peaks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.rank.ledger.replay import Composition
from zerobench.records.records import MemoryRow, PeakPart

Where = tuple[StepKind, Phase, Place]


class _Figures(NamedTuple):
    """One category over one entry of a phase."""

    live: int
    at_peak: int
    own_peak: int | None
    at_tensor_peak: int | None


class LedgerRows:
    """Bytes by step, phase, place and category."""

    def __init__(self) -> None:
        self._rows: dict[tuple[StepKind, Phase, Place, Category], MemoryRow] = {}

    def enter(
        self,
        where: Where,
        here: Composition[Category | None],
        rest_of_process: int | None,
        parts: Mapping[Category, list[PeakPart]] | None = None,
    ) -> None:
        """Record one entry of a phase; the host also has `rest_of_process` (None on other places).

        `parts`: the largest parts of each category at the peak of this entry.
        """
        parts = parts or {}
        rows = {
            category or Category.UNATTRIBUTED: _Figures(
                here.live[category],
                here.at_peak[category],
                peak_bytes,
                None if here.at_tensor_peak is None else here.at_tensor_peak[category],
            )
            for category, peak_bytes in here.own_peak.items()
        }
        nothing = _Figures(0, 0, 0, None if here.at_tensor_peak is None else 0)
        if rest_of_process is not None:
            rows[Category.REST_OF_PROCESS] = nothing._replace(
                live=rest_of_process,
                at_peak=rest_of_process,
                own_peak=None,
                at_tensor_peak=None if here.at_tensor_peak is None else rest_of_process,
            )
        for category in {Category.UNATTRIBUTED, *self._entered(where)}:
            rows.setdefault(category, nothing)
        total = rows[Category.TOTAL] = _total(rows)
        before = self._rows.get((*where, Category.TOTAL))
        # The peak of an earlier entry stays if it was larger.
        keeps_peak = before is not None and (before.at_peak_bytes or 0) > total.at_peak
        keeps_tensor_peak = before is not None and (before.at_tensor_peak_bytes or 0) > (total.at_tensor_peak or 0)
        step, phase, place = where
        for category, (live, at_peak, peak_bytes, at_tensor_peak) in rows.items():
            old = self._rows.get((*where, category))
            if old is not None and peak_bytes is not None:
                peak_bytes = max(peak_bytes, old.own_peak_bytes or 0)  # noqa: PLW2901
            self._rows[step, phase, place, category] = MemoryRow(
                step=step,
                phase=phase,
                place=place,
                category=category,
                live_bytes=live,
                at_peak_bytes=(old and old.at_peak_bytes) or 0 if keeps_peak else at_peak,
                own_peak_bytes=peak_bytes,
                at_tensor_peak_bytes=(old and old.at_tensor_peak_bytes) or 0 if keeps_tensor_peak else at_tensor_peak,
                largest=old and old.largest if keeps_peak else parts.get(category),
            )

    def forget(self, step: StepKind) -> None:
        """Drop the rows of a kind of step."""
        self._rows = {key: row for key, row in self._rows.items() if key[0] is not step}

    def peak_bytes(self, step: StepKind, place: Place) -> int | None:
        """Largest total within a phase of this kind of step, without start-up; None if nothing was tracked."""
        keys = ((step, phase, place, Category.TOTAL) for phase in Phase if phase is not Phase.INIT)
        totals = [row.at_peak_bytes for key in keys if (row := self._rows.get(key)) is not None]
        return max((total for total in totals if total is not None), default=None)

    def parts_at_peak(self, step: StepKind, place: Place) -> dict[str, int]:
        """Bytes by category at the largest peak within this kind of step; start-up is part of the first step."""
        rows = [row for row in self._rows.values() if row.step is step and row.place is place]
        totals = {row.phase: row.at_peak_bytes or 0 for row in rows if row.category is Category.TOTAL}
        worst = max(totals, key=totals.__getitem__, default=None)
        peak_rows = (row for row in rows if row.phase is worst and row.category is not Category.TOTAL)
        return {row.category.value: row.at_peak_bytes for row in peak_rows if row.at_peak_bytes}

    def all(self) -> list[MemoryRow]:
        """All rows so far, including a `total` row for each phase and place."""
        return list(self._rows.values())

    def _entered(self, where: Where) -> set[Category]:
        """Categories of an earlier entry of the same phase."""
        return {key[3] for key in self._rows if key[:3] == where} - {Category.TOTAL}


def _total(rows: Mapping[Category, _Figures]) -> _Figures:
    at_peak = sum(row.at_peak for row in rows.values())
    of_tensors = [row.at_tensor_peak for row in rows.values() if row.at_tensor_peak is not None]
    return _Figures(
        live=sum(row.live for row in rows.values()),
        at_peak=at_peak,
        own_peak=at_peak,
        at_tensor_peak=sum(of_tensors) if of_tensors else None,
    )
