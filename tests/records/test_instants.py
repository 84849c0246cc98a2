"""Memory at one instant on one rank."""

from collections import Counter

from tests.report.sample_run import GIB, MIB, completed_trial, on_cpu, sample_trials, spec
from tests.tools.at_least_one import at_least_one
from tests.tools.known import known
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.records.instants import (
    GROUPS,
    Instant,
    device_peak_bytes,
    host_peak_bytes,
    largest_model_states,
    largest_peak,
    model_states,
    peak_instant,
    peaks_by_rank,
    phase_peak,
)
from zerobench.records.records import MemoryRow
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
