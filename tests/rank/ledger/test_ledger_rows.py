"""A phase that is entered twice keeps its larger peaks, each with the categories of its own instant."""

from collections import Counter

from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.rank.ledger.ledger_rows import LedgerRows
from zerobench.rank.ledger.replay import Composition
from zerobench.records.records import MemoryRow, PeakPart

WHERE = (StepKind.STEADY, Phase.FORWARD, Place.HOST)


def held(at_peak: dict[Category | None, int], live: dict[Category | None, int]) -> Composition[Category | None]:
    return Composition(Counter(live), Counter(at_peak), Counter(at_peak), sum(at_peak.values()))


def entry(activations: int, workspace: int, live: int = 0) -> Composition[Category | None]:
    here = held({Category.ACTIVATIONS: activations, Category.KERNEL_WORKSPACE: workspace}, {Category.ACTIVATIONS: live})
    here.at_tensor_peak = Counter({Category.ACTIVATIONS: activations})
    return here


def entered(*entries: Composition[Category | None], rest: int | None = None) -> LedgerRows:
    rows = LedgerRows()
    for one in entries:
        rows.enter(WHERE, one, rest)
    return rows


def rows_of(rows: LedgerRows) -> dict[Category, MemoryRow]:
    return {row.category: row for row in rows.all()}


def test_the_two_peaks_may_be_of_two_entries():
    found = rows_of(entered(entry(10, 100), entry(20, 5, live=3)))
    assert found[Category.TOTAL].at_peak_bytes == 110
    assert found[Category.ACTIVATIONS].at_peak_bytes == 10
    assert found[Category.TOTAL].at_tensor_peak_bytes == 20
    assert found[Category.ACTIVATIONS].at_tensor_peak_bytes == 20
    assert found[Category.ACTIVATIONS].live_bytes == 3
    assert found[Category.KERNEL_WORKSPACE].own_peak_bytes == 100


def test_the_rest_of_the_process_is_in_the_total_of_both_peaks():
    total = rows_of(entered(entry(10, 100), rest=7))[Category.TOTAL]
    assert (total.live_bytes, total.at_peak_bytes, total.at_tensor_peak_bytes) == (7, 117, 17)


def test_a_ledger_that_cannot_tell_the_two_peaks_apart_says_one():
    here = entry(10, 0)
    here.at_tensor_peak = None
    assert {row.at_tensor_peak_bytes for row in entered(here, rest=7).all()} == {None}


def of_one(category: Category | None, nbytes: int) -> Composition[Category | None]:
    return held({category: nbytes}, {category: nbytes})


def test_a_category_that_a_larger_second_entry_lacks_is_nought_at_the_peak_and_no_longer_live():
    found = rows_of(entered(of_one(Category.ACTIVATIONS, 10), of_one(Category.GRADIENTS, 50)))
    gone = found[Category.ACTIVATIONS]
    assert (gone.live_bytes, gone.at_peak_bytes, gone.own_peak_bytes) == (0, 0, 10)
    assert found[Category.TOTAL].at_peak_bytes == 50


def test_a_category_that_a_larger_first_entry_lacks_is_nought_at_both_peaks():
    later = held({Category.INPUTS: 3}, {})
    later.at_tensor_peak = later.at_peak
    found = rows_of(entered(entry(20, 5), later))[Category.INPUTS]
    assert (found.at_peak_bytes, found.at_tensor_peak_bytes, found.own_peak_bytes) == (0, 0, 3)


def test_bytes_without_evidence_have_a_row_even_where_there_are_none():
    known, unknown = of_one(Category.GRADIENTS, 50), of_one(None, 70)
    for entries, nbytes in (((known,), 0), ((known, unknown), 70)):
        assert rows_of(entered(*entries))[Category.UNATTRIBUTED].at_peak_bytes == nbytes


def test_the_largest_total_of_a_step_is_that_of_its_phases_without_start_up():
    rows = LedgerRows()
    for phase, nbytes in ((Phase.INIT, 900), (Phase.FORWARD, 300), (Phase.BACKWARD, 500), (Phase.STEP, 400)):
        rows.enter((StepKind.FIRST, phase, Place.DEVICE), of_one(Category.PARAMETERS, nbytes), None)
    assert rows.peak_bytes(StepKind.FIRST, Place.DEVICE) == 500
    assert rows.peak_bytes(StepKind.FIRST, Place.HOST) is None
    assert rows.peak_bytes(StepKind.STEADY, Place.DEVICE) is None


def test_the_parts_of_a_steps_largest_peak_sum_to_it_start_up_being_part_of_the_first():
    rows = LedgerRows()
    rows.enter((StepKind.FIRST, Phase.INIT, Place.DEVICE), held({Category.PARAMETERS: 300, None: 20}, {}), None)
    rows.enter((StepKind.FIRST, Phase.STEP, Place.DEVICE), held({Category.PARAMETERS: 310}, {}), None)
    rows.enter((StepKind.FIRST, Phase.STEP, Place.HOST), held({Category.STAGING: 900}, {}), None)
    rows.enter((StepKind.STEADY, Phase.STEP, Place.DEVICE), held({Category.GRADIENTS: 5, Category.INPUTS: 0}, {}), None)
    assert rows.parts_at_peak(StepKind.FIRST, Place.DEVICE) == {"parameters": 300, "unattributed": 20}
    assert rows.parts_at_peak(StepKind.STEADY, Place.DEVICE) == {"gradients": 5}
    assert rows.parts_at_peak(StepKind.STEADY, Place.HOST) == {}


def test_a_kind_of_step_is_forgotten_alone():
    rows = LedgerRows()
    for kind in StepKind:
        rows.enter((kind, Phase.STEP, Place.DEVICE), of_one(Category.PARAMETERS, 5), None)
    rows.forget(StepKind.STEADY)
    assert {row.step for row in rows.all()} == {StepKind.FIRST}


def test_the_largest_parts_are_those_of_the_entry_with_the_larger_peak():
    rows = LedgerRows()
    for size in (10, 30, 20):
        part = PeakPart(total_bytes=size, count=1)
        rows.enter(WHERE, entry(size, 0), None, {Category.ACTIVATIONS: [part]})
    found = rows_of(rows)
    assert found[Category.ACTIVATIONS].at_peak_bytes == 30
    assert [part.total_bytes for part in found[Category.ACTIVATIONS].largest or []] == [30]
    assert found[Category.TOTAL].largest is None
