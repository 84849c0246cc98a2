"""A phase that is entered twice keeps its larger peaks, each with the categories of its own instant."""

from __future__ import annotations

from collections import Counter

from zerobench.memory.ledger_rows import LedgerRows
from zerobench.memory.replay import Composition
from zerobench.records import Category, MemoryRow, Phase, Place, StepKind

WHERE = (StepKind.STEADY, Phase.FORWARD, Place.HOST)


def entry(activations: int, workspace: int, live: int = 0) -> Composition[Category | None]:
    at_peak: Counter[Category | None] = Counter()
    at_peak.update({Category.ACTIVATIONS: activations, Category.KERNEL_WORKSPACE: workspace})
    here: Composition[Category | None] = Composition(Counter({Category.ACTIVATIONS: live}), at_peak, dict(at_peak))
    here.at_tensor_peak = Counter({Category.ACTIVATIONS: activations})
    return here


def rows_of(rows: LedgerRows) -> dict[Category, MemoryRow]:
    return {row.category: row for row in rows.all()}


def test_the_two_peaks_may_be_of_two_entries():
    rows = LedgerRows()
    rows.enter(WHERE, entry(10, 100), None)
    rows.enter(WHERE, entry(20, 5, live=3), None)
    found = rows_of(rows)
    assert found[Category.TOTAL].at_peak_bytes == 110
    assert found[Category.ACTIVATIONS].at_peak_bytes == 10
    assert found[Category.TOTAL].at_tensor_peak_bytes == 20
    assert found[Category.ACTIVATIONS].at_tensor_peak_bytes == 20
    assert found[Category.ACTIVATIONS].live_bytes == 3
    assert found[Category.KERNEL_WORKSPACE].own_peak_bytes == 100


def test_the_rest_of_the_process_is_in_the_total_of_both_peaks():
    rows = LedgerRows()
    rows.enter(WHERE, entry(10, 100), 7)
    total = rows_of(rows)[Category.TOTAL]
    assert (total.live_bytes, total.at_peak_bytes, total.at_tensor_peak_bytes) == (7, 117, 17)


def test_a_ledger_that_cannot_tell_the_two_peaks_apart_says_one():
    rows = LedgerRows()
    here = entry(10, 0)
    here.at_tensor_peak = None
    rows.enter(WHERE, here, 7)
    assert {row.at_tensor_peak_bytes for row in rows.all()} == {None}
