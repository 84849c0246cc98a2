"""The error statistics are what one works out by hand, and costly mistakes are found."""

import pytest

from tests.report.sample_predictions import (
    BACKWARD,
    FORWARD,
    asked,
    foretold,
    held_by,
    ledger,
    measured,
    predicted,
    trial_of,
)
from tests.report.sample_run import GIB, completed_trial, failed_trial, spec
from zerobench.common.vocabulary import Category, Phase, Place, Status, StepKind
from zerobench.config.trial.trial import Evidence
from zerobench.records.records import ContextMemory, DeviceMemory, Failure
from zerobench.report.figures.predictions.errors import (
    ErrorRow,
    capacity_bytes,
    error_rows,
    false_refusals,
    from_nothing,
    has_capacity,
    missed_refusals,
    under_predictions,
)
from zerobench.report.figures.predictions.figures import Quantity
from zerobench.report.figures.predictions.predicted import Pair, join

PARAMETERS = Category.PARAMETERS
HOST = (StepKind.STEADY, Phase.FORWARD, Place.HOST)


def pairs_of(*said: tuple[int, int], real: tuple[int, int] = (1000, 2000), evidence: str = "simulated") -> list[Pair]:
    """A pair for each live and peak that a prediction said of works that all measured `real`."""
    works = [asked(micro_batch_size=1 + index) for index in range(len(said))]
    reals = [measured(work, ledger(FORWARD, {PARAMETERS: real})) for work in works]
    predictions = [
        predicted(work, ledger(FORWARD, {PARAMETERS: sizes}), evidence) for work, sizes in zip(works, said, strict=True)
    ]
    return join([*reals, *predictions])


def found(rows: list[ErrorRow], quantity: Quantity, when: tuple[StepKind, Phase] | None) -> ErrorRow:
    [row] = [row for row in rows if (row.quantity, row.when) == (quantity, when)]
    return row


def test_the_median_is_of_absolute_errors_and_the_worst_keep_their_signs() -> None:
    pairs = pairs_of((1010, 2000), (970, 2100), (1000, 1990), (1040, 1800))
    rows = error_rows(pairs)
    live = found(rows, Quantity.LIVE, FORWARD[:2])
    assert live.num_cells == 4
    assert live.median == pytest.approx(0.02)  # of 0, 1, 3 and 4%
    assert live.worst_over is not None
    assert live.worst_under is not None
    assert (live.worst_over.pair, live.worst_under.pair) == (pairs[3], pairs[1])
    assert [live.worst_over.error, live.worst_under.error] == pytest.approx([0.04, -0.03])
    peak = found(rows, Quantity.PEAK, FORWARD[:2])
    assert peak.median == pytest.approx(0.0275)  # of 0, 0.5, 5 and 10%


def test_where_all_is_equal_there_is_no_worst() -> None:
    errors = found(error_rows(pairs_of((1000, 2000), (1000, 2000))), Quantity.PEAK, None)
    assert (errors.num_cells, errors.median, errors.worst_over, errors.worst_under) == (2, 0.0, None, None)


def test_only_totals_count_and_each_phase_and_world_has_its_rows() -> None:
    work = asked()
    forward, backward = (
        {PARAMETERS: (100, 100), Category.ACTIVATIONS: (900, 900)},
        {PARAMETERS: (100, 100), Category.GRADIENTS: (100, 300)},
    )
    real = measured(work, ledger(FORWARD, forward) + ledger(BACKWARD, backward))
    swapped = {PARAMETERS: (900, 900), Category.ACTIVATIONS: (100, 100)}
    said = [
        predicted(work, ledger(FORWARD, swapped) + ledger(BACKWARD, backward), evidence=world)
        for world in ("simulated", "solo")
    ]
    rows = error_rows(join([real, *said]))
    assert {row.median for row in rows} == {0.0}
    assert [(row.evidence, row.quantity, row.when, row.num_cells) for row in rows] == [
        (world, quantity, when, count)
        for world in (Evidence.SOLO, Evidence.SIMULATED)
        for quantity in (Quantity.LIVE, Quantity.PEAK)
        for when, count in [(FORWARD[:2], 1), (BACKWARD[:2], 1), (None, 2)]
    ]


def test_no_pairs_have_no_rows() -> None:
    assert error_rows([]) == []


def test_what_was_predicted_and_never_measured_is_named_and_in_no_statistic() -> None:
    work = asked(offload_optimizer="cpu")
    device = ledger(FORWARD, {PARAMETERS: (100, 100)})
    real = measured(work, device + ledger(HOST, {Category.REST_OF_PROCESS: (700, 700)}))
    pairs = join([real, predicted(work, device + ledger(HOST, {Category.STAGING: (64, 64)}))])
    assert {row.place for row in error_rows(pairs)} == {Place.DEVICE}
    assert [(one.cell.place, one.cell.predicted_bytes) for one in from_nothing(pairs)] == [(Place.HOST, 64)] * 2


def test_the_host_counts_where_states_are_offloaded_to_it() -> None:
    sizes = {Category.MASTER_WEIGHTS: (10, 10)}
    for offload, places in [("none", {Place.DEVICE}), ("cpu", {Place.DEVICE, Place.HOST})]:
        work = asked(offload_optimizer=offload)
        rows = ledger(FORWARD, sizes) + ledger(HOST, sizes)
        assert {row.place for row in error_rows(join([measured(work, rows), predicted(work, rows)]))} == places


def test_under_predictions_beyond_one_per_cent_are_named_worst_first_and_live_bytes_are_none() -> None:
    pairs = pairs_of((500, 1990), (1000, 1980), (1000, 1979), (1000, 1000), (1000, 9000))
    under = under_predictions(pairs)
    assert [(one.pair, one.cell.predicted_bytes) for one in under] == [(pairs[3], 1000), (pairs[2], 1979)]
    assert [one.cell.quantity for one in under] == [Quantity.PEAK] * 2
    assert len(under_predictions(pairs, beyond=0.0049)) == 4


def on_gpu(need_bytes: int, *, ran: bool, status: Status = Status.COMPLETED, gpu: str | None = "H100 SXM") -> Pair:
    """A prediction of so many reserved bytes for work that ran on an 80 GiB GPU of the sample, or ran out there."""
    work = spec("zero1", gpus_per_node=1)
    real = completed_trial(work) if ran else failed_trial(work, Failure(message="out of memory"))
    like = foretold(work, "simulated", gpu=gpu)
    sizes = {"allocated_bytes": 1, "peak_allocated_bytes": 1, "reserved_bytes": need_bytes}
    rest = {"peak_reserved_bytes": need_bytes, "alloc_retries": 0, "nvml_used_bytes": None, "nvml_process_bytes": None}
    memory = DeviceMemory.model_validate({"step": "steady", "phase": "forward", **sizes, **rest})
    rank = held_by(like, 0, ledger(FORWARD, {PARAMETERS: (1, 1)}), device_memory=[memory])
    [pair] = join([real, trial_of(like, rank, status=status)])
    return pair


H100_BYTES = 81082 * 2**20
"""The catalogue's H100 SXM."""


@pytest.mark.parametrize(
    ("need_bytes", "ran", "false", "missed"),
    [
        (H100_BYTES, True, False, False),
        (H100_BYTES + 1, True, True, False),
        (H100_BYTES, False, False, True),
        (H100_BYTES + 1, False, False, False),
    ],
)
def test_refusals_are_false_where_the_trial_ran_and_missed_where_it_ran_out(
    need_bytes: int, ran: bool, false: bool, missed: bool
) -> None:
    pair = on_gpu(need_bytes, ran=ran)
    assert capacity_bytes(pair) == H100_BYTES
    assert [bool(false_refusals([pair])), bool(missed_refusals([pair]))] == [false, missed]


def test_a_prediction_that_ran_out_of_memory_itself_is_a_refusal() -> None:
    pair = on_gpu(1, ran=True, status=Status.OUT_OF_DEVICE_MEMORY)
    [refusal] = false_refusals([pair])
    assert refusal.needed_bytes is None
    assert missed_refusals([on_gpu(1, ran=False, status=Status.OUT_OF_DEVICE_MEMORY)]) == []


def test_a_prediction_for_a_smaller_gpu_than_the_measured_one_is_no_false_refusal() -> None:
    assert false_refusals([on_gpu(60 * GIB, ran=True, gpu="A100 SXM 40GB")]) == []


def test_context_and_nccl_count_where_they_are_known() -> None:
    pair = on_gpu(H100_BYTES, ran=True)
    [rank] = pair.predicted.ranks
    context = ContextMemory(before_bytes=None, context_bytes=500, collectives_bytes=70)
    said = trial_of(pair.predicted.spec, rank.model_copy(update={"context": context}))
    [refusal] = false_refusals(join([*pair.measured, said]))
    assert refusal.needed_bytes == H100_BYTES + 570


def test_on_cpus_nothing_can_be_refused() -> None:
    pairs = pairs_of((1000, 2000))
    assert not has_capacity(pairs)
    assert false_refusals(pairs) == missed_refusals(pairs) == []
