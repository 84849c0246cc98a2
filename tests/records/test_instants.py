"""Memory at one instant on one rank."""

from collections import Counter
from typing import Any

import pytest

from tests.report.sample_run import GIB, MIB, SampleTrial, completed_trial, on_cpu, sample_trials, spec
from tests.tools.at_least_one import at_least_one
from tests.tools.known import known
from tests.tools.rank_records import ledger_row
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.trial.trial import Evidence
from zerobench.records.instants import (
    GROUPS,
    Instant,
    device_peak_bytes,
    end_instant,
    host_peak_bytes,
    largest_model_states,
    largest_peak,
    model_states,
    peak_instant,
    peaks_by_rank,
    phase_peak,
    rank_text,
)
from zerobench.records.records import DeviceMemory, HostProcess, HostSummary, MemoryRow, PeakPart, ProcessMemory
from zerobench.records.trials import completed, num_params
from zerobench.report.figures.paper import paper_terms

COMPLETED = [trial for trial in sample_trials() if completed(trial)]


def test_every_category_has_exactly_one_column() -> None:
    named = Counter(category for group in GROUPS.values() for category in group)
    assert named == Counter(category for category in Category if category is not Category.TOTAL)


def test_the_columns_of_every_peak_add_up_to_it() -> None:
    places = (Place.DEVICE, Place.HOST)
    for trial in at_least_one(COMPLETED):
        for instant in at_least_one([i for p in places for s in StepKind for i in peaks_by_rank(trial, s, p).values()]):
            assert sum(instant.group_bytes(name) or 0 for name in GROUPS) == instant.total_bytes


def test_the_largest_peak_is_that_of_the_odd_rank() -> None:
    instant = known(largest_peak(COMPLETED[1], StepKind.STEADY, Place.DEVICE))
    assert (instant.rank, instant.phase) == (3, Phase.BACKWARD)


def test_of_equal_ranks_the_lowest_is_shown() -> None:
    instant = known(largest_peak(COMPLETED[1], StepKind.STEADY, Place.HOST))
    assert instant.rank == 0


def test_categories_that_nobody_could_watch_are_not_available() -> None:
    row = MemoryRow(
        step=StepKind.STEADY,
        phase=Phase.STEP,
        place=Place.DEVICE,
        category=Category.TOTAL,
        live_bytes=5,
        at_peak_bytes=None,
        own_peak_bytes=7,
    )
    rank = COMPLETED[1].ranks[0].model_copy(update={"memory": [row]})
    instant = peak_instant(rank, StepKind.STEADY, Place.DEVICE)
    assert instant == Instant(0, StepKind.STEADY, Phase.STEP, total_bytes=7, categories={})
    assert instant.group_bytes("parameters") is None


def test_a_phase_that_was_not_measured_has_no_peak() -> None:
    assert phase_peak(COMPLETED[1].ranks[0], StepKind.STEADY, Phase.INIT, Place.DEVICE) is None


def test_the_device_peak_takes_start_up_and_every_rank_in() -> None:
    trial = completed_trial(spec("zero1", gpus_per_node=2))
    memory = trial.ranks[1].memory
    huge = [row.model_copy(update={"at_peak_bytes": 99 * GIB}) if is_init_total(row) else row for row in memory]
    assert device_peak_bytes(trial.with_rank(1, memory=huge)) == 99 * GIB


def is_init_total(row: MemoryRow) -> bool:
    """Whether the row is the total of the device in the phase `init`."""
    return (row.phase, row.place, row.category) == (Phase.INIT, Place.DEVICE, Category.TOTAL)


def test_the_device_peak_is_none_where_nobody_measured() -> None:
    trial = completed_trial(spec("zero1", gpus_per_node=1))
    assert device_peak_bytes(trial.with_ranks(memory=[], device_memory=[])) is None


def test_the_host_peak_is_the_kernels_where_the_ledger_has_no_host() -> None:
    trial = on_cpu(completed_trial(spec("zero1", gpus_per_node=1)))
    assert host_peak_bytes(trial.with_ranks(memory=[])) == 3 * GIB + 7 * MIB
    assert host_peak_bytes(trial) == 3 * GIB + 2048


def test_a_simulated_host_peak_is_never_that_of_the_simulator() -> None:
    trial = completed_trial(spec("zero1", gpus_per_node=1, evidence="simulated"))
    assert trial.ranks[0].process_memory
    assert host_peak_bytes(trial.with_ranks(memory=[])) is None


def test_model_states_equal_the_papers_terms_to_within_padding_wherever_they_lie() -> None:
    for trial in at_least_one(COMPLETED):
        states, terms = known(largest_model_states(trial)), known(paper_terms(trial.spec, num_params(trial)))
        for name in ("parameters_bytes", "gradients_bytes", "optimizer_bytes"):
            assert 0 <= getattr(states, name) - getattr(terms, name) <= 3 * 512


def test_gradients_are_read_before_the_step_frees_them() -> None:
    rank = COMPLETED[2].ranks[0]
    after = [row for row in rank.memory if (row.step, row.phase) == (StepKind.STEADY, Phase.STEP)]
    states = model_states(rank)
    assert sum(row.live_bytes for row in after if row.category is Category.GRADIENTS) == 0
    assert states is not None
    assert states.gradients_bytes > 0


def test_gradients_that_stay_are_read_from_a_step_of_one_phase_and_those_without_a_name_are_not_zero() -> None:
    rank = COMPLETED[2].ranks[0]
    of_step = [row for row in rank.memory if (row.step, row.phase) == (StepKind.STEADY, Phase.STEP)]
    stays = next(row for row in of_step if row.category is Category.PARAMETERS)
    others = [row for row in of_step if row.category is not Category.GRADIENTS]
    kept = stays.model_copy(update={"category": Category.GRADIENTS, "live_bytes": 77})
    states = known(model_states(rank.model_copy(update={"memory": [*others, kept]})))
    assert states.gradients_bytes == 77
    assert model_states(rank.model_copy(update={"memory": others})) is None


def held(
    category: Category,
    at_peak: int | None,
    live: int = 0,
    *,
    step: StepKind = StepKind.STEADY,
    phase: Phase = Phase.STEP,
    place: Place = Place.DEVICE,
) -> MemoryRow:
    return ledger_row(step, phase, place, category, at_peak, live)


def ranks_with(*ledgers: list[MemoryRow], **fields: Any) -> SampleTrial:
    """A measured trial whose ranks have these ledgers and no other figures of memory."""
    trial = completed_trial(spec("zero1", gpus_per_node=len(ledgers), **fields))
    return trial.with_ranks(memory=lambda rank: ledgers[rank.rank], device_memory=[], process_memory=[])


EVERYWHERE = [
    held(Category.TOTAL, 1 + number, 100 + number, step=step, phase=phase, place=place)
    for number, (step, phase, place) in enumerate(
        (step, phase, place) for step in StepKind for phase in (Phase.FORWARD, Phase.STEP) for place in Place
    )
]


@pytest.mark.parametrize("row", EVERYWHERE)
def test_the_instant_of_a_phase_is_of_its_own_step_and_place(row: MemoryRow) -> None:
    [rank] = ranks_with(EVERYWHERE).ranks
    peak, end = (look(rank, row.step, row.phase, row.place) for look in (phase_peak, end_instant))
    assert (known(peak).total_bytes, known(end).total_bytes) == (row.at_peak_bytes, row.live_bytes)
    assert (known(peak).step, known(peak).phase) == (row.step, row.phase)
    without = rank.model_copy(update={"memory": [one for one in EVERYWHERE if one != row]})
    assert phase_peak(without, row.step, row.phase, row.place) is None
    assert end_instant(without, row.step, row.phase, row.place) is None


def test_the_instant_of_a_step_is_that_of_its_largest_phase_with_the_categories_and_parts_of_that_one() -> None:
    part = PeakPart(total_bytes=9, count=1, holders=[], site=None, module=None, path=None)
    rows = [
        held(Category.TOTAL, 50, 1, phase=Phase.FORWARD),
        held(Category.PARAMETERS, 50, 1, phase=Phase.FORWARD),
        held(Category.TOTAL, 60, 2, phase=Phase.BACKWARD),
        held(Category.GRADIENTS, 60, 2, phase=Phase.BACKWARD).model_copy(update={"largest": [part]}),
        held(Category.PARAMETERS, None, 2, phase=Phase.BACKWARD),
        held(Category.TOTAL, 99, 2, step=StepKind.FIRST),
        held(Category.TOTAL, 98, 2, place=Place.HOST),
    ]
    [rank] = ranks_with(rows).ranks
    instant = known(peak_instant(rank, StepKind.STEADY, Place.DEVICE))
    assert (instant.total_bytes, instant.phase, dict(instant.categories)) == (
        60,
        Phase.BACKWARD,
        {Category.GRADIENTS: 60},
    )
    assert instant.largest_part(Category.GRADIENTS) == part
    assert instant.largest_part(Category.PARAMETERS) is None
    assert instant.group_bytes("gradients", "parameters") == 60
    end = known(end_instant(rank, StepKind.STEADY, Phase.BACKWARD, Place.DEVICE))
    assert dict(end.categories) == {Category.GRADIENTS: 2, Category.PARAMETERS: 2}


@pytest.mark.parametrize(("at_peak", "own_peak", "live", "expected"), [
    (7, 9, 5, 7), (0, 9, 5, 0), (None, 9, 5, 9), (None, 0, 5, 0), (None, None, 5, 5)
])  # fmt: skip
def test_a_peak_that_nobody_watched_is_the_rows_own_or_what_was_left(
    at_peak: int | None, own_peak: int | None, live: int, expected: int
) -> None:
    row = held(Category.TOTAL, at_peak, live).model_copy(update={"own_peak_bytes": own_peak})
    [rank] = ranks_with([row]).ranks
    assert known(peak_instant(rank, StepKind.STEADY, Place.DEVICE)).total_bytes == expected


@pytest.mark.parametrize(("evidence", "total", "is_kept"), [
    ("measured", 100, True), ("solo", 100, True), ("simulated", 70, False), ("formula", 70, False),
    ("emulated", 70, False),
])  # fmt: skip
def test_the_process_of_a_prediction_is_no_part_of_the_trial(evidence: str, total: int, is_kept: bool) -> None:
    parts = {Category.PARAMETERS: 70, Category.REST_OF_PROCESS: 30}
    instant = Instant(0, StepKind.STEADY, Phase.STEP, 100, parts)
    found = instant.exclude_predictor(Evidence(evidence))
    assert (found.total_bytes, Category.REST_OF_PROCESS in found.categories) == (total, is_kept)
    bare = Instant(0, StepKind.STEADY, Phase.STEP, 70, {Category.PARAMETERS: 70})
    assert bare.exclude_predictor(Evidence(evidence)) == bare


def test_a_server_is_named_and_its_peak_is_apart_from_its_workers() -> None:
    ledgers = [[held(Category.TOTAL, size)] for size in (90, 40, 50, 50)]
    trial = ranks_with(*ledgers).with_rank(0, role="server")
    steady = (StepKind.STEADY, Place.DEVICE)
    found = [known(largest_peak(trial, *steady, role)) for role in (None, "server", "worker")]
    assert [(one.total_bytes, one.rank_text) for one in found] == [(90, "0 server"), (90, "0 server"), (50, "2")]
    assert set(peaks_by_rank(trial, *steady, "worker")) == {1, 2, 3}
    assert largest_peak(trial, StepKind.FIRST, Place.DEVICE) is None
    assert [rank_text(3, "worker"), rank_text(0, "server")] == ["3", "0 server"]


def _states(parameters: int, gradients: int, moments: int) -> list[MemoryRow]:
    return [
        held(Category.GRADIENTS, None, gradients, phase=Phase.BACKWARD),
        held(Category.PARAMETERS, None, 9999, phase=Phase.BACKWARD),
        held(Category.PARAMETERS, None, parameters),
        held(Category.GATHERED_PARAMETERS, None, 9999),
        held(Category.GRADIENTS, None, 1),
        held(Category.MASTER_WEIGHTS, None, moments, place=Place.HOST),
        held(Category.FIRST_MOMENT, None, moments),
        held(Category.SECOND_MOMENT, None, moments, place=Place.NVME),
        held(Category.FIRST_MOMENT, None, 9999, step=StepKind.FIRST),
    ]


def test_model_states_are_those_of_all_places_and_of_the_rank_that_holds_most() -> None:
    trial = ranks_with(_states(2, 3, 4), _states(5, 3, 4), _states(5, 3, 4)).with_rank(0, role="server")
    states = known(model_states(trial.ranks[0]))
    assert (states.parameters_bytes, states.gradients_bytes, states.optimizer_bytes) == (2, 3, 12)
    assert (states.total_bytes, states.rank_text) == (17, "0 server")
    assert known(largest_model_states(trial)).rank == 1
    assert known(largest_model_states(trial, "server")).rank == 0
    assert model_states(ranks_with([held(Category.GRADIENTS, None, 3, phase=Phase.BACKWARD)]).ranks[0]) is None


def test_the_devices_peak_is_the_allocators_where_that_saw_more() -> None:
    def peak(nbytes: int) -> DeviceMemory:
        sizes = {"allocated_bytes": 0, "reserved_bytes": 0, "peak_reserved_bytes": 999, "alloc_retries": 0}
        said = {"nvml_used_bytes": None, "nvml_process_bytes": None, "peak_allocated_bytes": nbytes}
        return DeviceMemory.model_validate({"step": "first", "phase": "init", **sizes, **said})

    trial = ranks_with([held(Category.TOTAL, 50)], [held(Category.TOTAL, 60, place=Place.HOST)])
    assert device_peak_bytes(trial) == 50
    assert device_peak_bytes(trial.with_rank(1, device_memory=[peak(40), peak(70)])) == 70
    assert device_peak_bytes(trial.with_rank(1, device_memory=[peak(40)])) == 50


def _process(rank: int | None, peak: int) -> HostProcess:
    return HostProcess(pid=1, name="python", rank=rank, peak_rss_bytes=peak, peak_pss_bytes=None)


def test_the_hosts_peak_of_a_watched_script_is_its_largest_rank_or_else_its_largest_process() -> None:
    summary = {"hostname": "here", "interval_s": 1.0, "num_samples": 1, "largest_gap_s": None, "peak_rss_bytes": 9}
    summary |= {"peak_pss_bytes": 9, "group_peak_bytes": 9, "group_limit_bytes": None}

    def watched(*processes: HostProcess) -> SampleTrial:
        return ranks_with([]).with_record(host=[HostSummary.model_validate({**summary, "processes": processes})])

    assert host_peak_bytes(watched(_process(None, 90), _process(0, 40), _process(1, 50))) == 50
    assert host_peak_bytes(watched(_process(None, 90), _process(None, 40))) == 90
    assert host_peak_bytes(watched()) is None
    kernel = ProcessMemory(
        step=StepKind.FIRST, phase=Phase.STEP, rss_bytes=7, pss_bytes=None, peak_rss_bytes=None, malloc_bytes=None,
        pinned_bytes=None,
    )  # fmt: skip
    both = [kernel, kernel.model_copy(update={"rss_bytes": 5, "peak_rss_bytes": 8})]
    assert host_peak_bytes(watched(_process(0, 90)).with_ranks(process_memory=both)) == 8


def test_a_hosts_remainder_below_nothing_is_no_peak() -> None:
    """A CPU rank that allocated and never touched."""
    rows = [held(Category.TOTAL, size, place=Place.HOST) for size in (-5,)]
    assert host_peak_bytes(ranks_with(rows)) is None
    assert host_peak_bytes(ranks_with(rows, [held(Category.TOTAL, 0, place=Place.HOST)])) == 0
