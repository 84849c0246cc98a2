"""Predictions find what measured the same work, and are compared with it figure by figure."""

from typing import Any

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
    row,
    trial_of,
)
from tests.report.sample_run import GPU, SampleTrial, completed_trial, failed_trial, on_cpu, spec
from zerobench.common.vocabulary import Category, Phase, Place, Status, StepKind
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.records.records import Failure
from zerobench.report.documents.markdown import document
from zerobench.report.figures.predictions.figures import Quantity
from zerobench.report.figures.predictions.predicted import Pair, join
from zerobench.report.tables.predictions import predicted_parts
from zerobench.report.tables.validation import validation_parts

PARAMETERS, ACTIVATIONS, TOTAL = Category.PARAMETERS, Category.ACTIVATIONS, Category.TOTAL
HOST = (StepKind.STEADY, Phase.FORWARD, Place.HOST)


def only(pairs: list[Pair]) -> Pair:
    [pair] = pairs
    return pair


def errors(pair: Pair) -> dict[str, tuple[Any, ...]]:
    """Measured bytes, predicted bytes and error by `phase place category quantity`."""
    return {
        f"{cell.phase} {cell.place} {cell.category} {cell.quantity}": (
            cell.measured_bytes,
            cell.predicted_bytes,
            cell.error,
        )
        for cell in pair.cells
    }


def test_cells_are_measured_bytes_predicted_bytes_and_the_fraction_by_which_they_differ() -> None:
    work = asked()
    real = measured(work, ledger(FORWARD, {PARAMETERS: (400, 400), ACTIVATIONS: (600, 1600)}))
    said = predicted(work, ledger(FORWARD, {PARAMETERS: (400, 400), ACTIVATIONS: (650, 1500)}))
    pair = only(join([real, said]))
    assert pair.predicted is said
    assert pair.measured == (real,)
    assert pair.left_out == ()
    assert errors(pair) == {
        "forward device parameters live": (400, 400, 0.0),
        "forward device parameters peak": (400, 400, 0.0),
        "forward device activations live": (600, 650, pytest.approx(50 / 600)),
        "forward device activations peak": (1600, 1500, pytest.approx(-100 / 1600)),
        "forward device total live": (1000, 1050, pytest.approx(0.05)),
        "forward device total peak": (2000, 1900, pytest.approx(-0.05)),
    }
    total = pair.totals[StepKind.STEADY, Phase.FORWARD, Place.DEVICE, Quantity.PEAK]
    assert (total.measured_bytes, total.predicted_bytes) == (2000, 1900)


def test_a_prediction_of_other_work_joins_nothing() -> None:
    real = measured(asked("zero1"), ledger(FORWARD, {PARAMETERS: (4, 4)}))
    assert join([real, predicted(asked("zero2"), ledger(FORWARD, {PARAMETERS: (4, 4)}))]) == []
    assert join([real]) == []


def test_a_prediction_is_held_against_the_rank_that_it_plays_and_shows_how_far_the_others_lie_apart() -> None:
    work = asked()
    real = measured(work, *(ledger(FORWARD, {PARAMETERS: (size, size)}) for size in (100, 180)))
    first, last = (predicted(work, ledger(FORWARD, {PARAMETERS: (90, 90)}), rank=rank) for rank in (0, 1))
    pairs = join([real, last, first])
    assert [pair.predicted for pair in pairs] == [last, first]
    cells = [pair.totals[*FORWARD, Quantity.LIVE] for pair in pairs]
    assert [(cell.rank, cell.measured_bytes, cell.error) for cell in cells] == [(1, 180, -0.5), (0, 100, -0.1)]
    assert {(cell.measured_min_bytes, cell.measured_max_bytes) for cell in cells} == {(100, 180)}


def test_of_repeats_the_lower_median_counts_cell_by_cell() -> None:
    sizes = [(300, 310), (100, 390), (200, 350), (250, 320)]
    reals = [measured(asked(repeat=repeat), ledger(FORWARD, {PARAMETERS: size})) for repeat, size in enumerate(sizes)]
    said = predicted(asked(), ledger(FORWARD, {PARAMETERS: (200, 330)}))
    found = errors(only(join([*reals, said])))
    assert found["forward device total live"][:2] == (200, 200)
    assert found["forward device total peak"][:2] == (320, 330)


def test_repeats_of_one_prediction_are_one_pair() -> None:
    real = measured(asked(), ledger(FORWARD, {PARAMETERS: (100, 100)}))
    said = [predicted(asked(repeat=r), ledger(FORWARD, {PARAMETERS: (s, s)})) for r, s in enumerate((90, 110, 120))]
    assert errors(only(join([real, *said])))["forward device total live"][:2] == (100, 110)


def test_worlds_and_gpus_are_pairs_of_their_own() -> None:
    rows = ledger(FORWARD, {PARAMETERS: (100, 100)})
    real = measured(asked(), rows)
    said = [predicted(asked(), rows, evidence=world) for world in ("solo", "simulated", "formula")]
    assert [pair.predicted for pair in join([real, *said])] == said


def test_the_host_is_compared_without_the_process_around_the_tensors() -> None:
    real = measured(
        asked(), ledger(HOST, {Category.MASTER_WEIGHTS: (1000, 1000), Category.REST_OF_PROCESS: (5000, 6000)})
    )
    said = predicted(asked(), ledger(HOST, {Category.MASTER_WEIGHTS: (1010, 1010)}))
    assert errors(only(join([real, said]))) == {
        f"forward host {category} {quantity}": (1000, 1010, pytest.approx(0.01))
        for category in ("master_weights", "total")
        for quantity in ("live", "peak")
    }


def test_resident_memory_less_than_its_tensors_does_not_hide_them() -> None:
    real = measured(
        asked(), ledger(HOST, {Category.MASTER_WEIGHTS: (1000, 1000), Category.REST_OF_PROCESS: (-300, -300)})
    )
    said = predicted(asked(), ledger(HOST, {Category.MASTER_WEIGHTS: (1000, 1000)}))
    assert {cell.error for cell in only(join([real, said])).cells} == {0.0}


def test_a_category_that_a_ledger_leaves_out_has_no_bytes_and_one_that_a_formula_leaves_out_is_not_compared() -> None:
    real = measured(asked(), ledger(FORWARD, {PARAMETERS: (400, 400), ACTIVATIONS: (600, 600)}))
    rows = ledger(FORWARD, {PARAMETERS: (400, 400), Category.TEMPORARIES: (50, 50)})
    simulated, formula = (
        errors(only(join([real, predicted(asked(), rows, world)]))) for world in ("simulated", "formula")
    )
    assert simulated["forward device activations live"] == (600, 0, -1.0)
    assert simulated["forward device temporaries live"] == (0, 50, None)
    assert "forward device activations live" not in formula
    assert formula["forward device total live"] == (1000, 450, pytest.approx(-0.55))


def test_what_neither_side_has_a_byte_of_is_no_cell() -> None:
    rows = ledger(HOST, {Category.UNATTRIBUTED: (0, 0)})
    pair = only(join([measured(asked(), rows), predicted(asked(), rows)]))
    assert pair.cells == ()
    assert [one.why for one in pair.left_out] == ["has no measured counterpart"]


def test_a_peak_that_was_not_watched_is_not_compared() -> None:
    real = measured(asked(), ledger(FORWARD, {PARAMETERS: (400, 400)}))
    said = predicted(asked(), [row(FORWARD, PARAMETERS, 400, None), row(FORWARD, TOTAL, 400, None)])
    assert set(errors(only(join([real, said])))) == {"forward device parameters live", "forward device total live"}


def test_a_measured_trial_that_did_not_complete_is_not_compared_and_says_so() -> None:
    failed = failed_trial(asked(), Failure(message="killed"), status=Status.TIMEOUT)
    pair = only(join([failed, predicted(asked(), ledger(FORWARD, {PARAMETERS: (1, 1)}))]))
    assert pair.cells == ()
    assert pair.measured == ()
    assert [(one.trial, one.why) for one in pair.left_out] == [(failed, "did not complete (timeout): killed")]


def test_a_prediction_that_did_not_complete_is_not_compared_and_says_so() -> None:
    like = foretold(asked(), "simulated")
    failed = trial_of(like, status=Status.CRASH, reason="no such kernel")
    pair = only(join([measured(asked(), ledger(BACKWARD, {PARAMETERS: (1, 1)})), failed]))
    assert pair.cells == ()
    assert [(one.trial, one.why) for one in pair.left_out] == [(failed, "did not complete (crash): no such kernel")]


def test_a_measured_trial_whose_losses_disagree_is_not_compared_and_its_repeat_that_agrees_is() -> None:
    single = completed_trial(spec("single", gpus_per_node=1, gradient_accumulation_steps=8))
    good = completed_trial(spec("zero1", repeat=0))
    wrong = completed_trial(spec("zero1", repeat=1), loss_error=0.31)
    like = foretold(spec("zero1"), "solo")
    said = trial_of(like, good.ranks[0].model_copy(update={"trial_id": like.trial_id, "losses": []}))
    pair = only(join([single, wrong, said, good]))
    assert pair.measured == (good,)
    [left_out] = pair.left_out
    assert left_out.trial is wrong
    assert left_out.why == "was measured, but its losses differ from those of"
    assert left_out.reference == single.spec.trial_id
    assert only(join([single, wrong, said])).cells == ()


def test_a_measured_trial_without_the_predicted_rank_is_not_compared() -> None:
    rows = ledger(FORWARD, {PARAMETERS: (1, 1)})
    pair = only(join([measured(asked(), rows), predicted(asked(), rows, rank=1)]))
    assert [one.why for one in pair.left_out] == ["was measured, but has no record of the predicted rank 1"]


@pytest.mark.parametrize(
    ("evidence", "gpu", "on_gpu", "compared"),
    [
        ("simulated", None, False, True),
        ("simulated", "H100 SXM", True, True),
        ("simulated", "a GPU in no catalogue", True, True),
        ("simulated", "A100 SXM 80GB", True, False),
        ("simulated", "H100 SXM", False, False),
        ("simulated", None, True, False),
        ("solo", None, True, True),
        ("formula", None, True, True),
    ],
)
def test_a_prediction_for_another_device_is_not_compared(
    evidence: str, gpu: str | None, on_gpu: bool, compared: bool
) -> None:
    work = spec("zero1", gpus_per_node=1)
    real = completed_trial(work) if on_gpu else on_cpu(completed_trial(work))
    like = foretold(work, evidence, gpu=gpu)
    pair = only(join([real, trial_of(like, real.ranks[0].model_copy(update={"losses": []}))]))
    assert bool(pair.cells) is compared
    device = GPU if on_gpu else "cpu"
    wanted = [] if compared else [f"was measured on {device}, but the prediction is for {gpu or 'CPU ranks'}"]
    assert [one.why for one in pair.left_out] == wanted


def test_a_rank_alone_on_another_gpu_is_not_compared() -> None:
    real = completed_trial(spec("zero1", gpus_per_node=1))
    like = foretold(real.spec, "solo")
    rank = real.ranks[0].model_copy(update={"device_name": "NVIDIA A100-SXM4-80GB", "losses": []})
    assert only(join([real, trial_of(like, rank)])).cells == ()


def test_what_allocator_and_driver_say_is_compared_too() -> None:
    real = completed_trial(spec("zero1", gpus_per_node=1))
    [rank] = real.ranks
    like = foretold(real.spec, "simulated", gpu="H100 SXM")
    plain = {"nvml_used_bytes": None, "nvml_process_bytes": None}
    rows = [
        row.model_copy(update={**plain, "peak_reserved_bytes": row.peak_reserved_bytes // 2})
        for row in rank.device_memory
    ]
    pair = only(join([real, trial_of(like, rank.model_copy(update={"device_memory": rows, "losses": []}))]))
    reserved = pair.totals[*BACKWARD, Quantity.RESERVED]
    assert reserved.error == pytest.approx(-0.5)
    used = pair.totals[*BACKWARD, Quantity.USED]
    # NVML's figure of the process is 834 MiB above reserved; context and NCCL of the sample are 514 + 320 MiB.
    assert (used.predicted_bytes, used.error) == (used.measured_bytes, 0.0)


def test_without_a_driver_or_a_known_context_nothing_is_said_of_used_bytes() -> None:
    real = completed_trial(spec("zero1", gpus_per_node=1))
    like = foretold(real.spec, "simulated", gpu="H100 SXM")
    rank = real.ranks[0]
    rows = [row.model_copy(update={"nvml_used_bytes": None, "nvml_process_bytes": None}) for row in rank.device_memory]
    said = trial_of(like, rank.model_copy(update={"device_memory": rows, "losses": [], "context": None}))
    assert {cell.quantity for cell in only(join([real, said])).cells} == {"live", "peak", "reserved"}


def test_a_rank_that_leaves_no_ledger_has_nothing_to_compare() -> None:
    work = asked()
    real = trial_of(work, held_by(work, 0, []))
    assert only(join([real, predicted(work, ledger(FORWARD, {PARAMETERS: (1, 1)}))])).cells == ()


def test_what_no_real_ranks_measured_is_held_against_its_rank_played_alone_and_says_so() -> None:
    rows = ledger(FORWARD, {PARAMETERS: (100, 100)})
    alone, other = (predicted(asked(), rows, evidence="solo", rank=rank) for rank in (0, 1))
    said = predicted(asked(), ledger(FORWARD, {PARAMETERS: (90, 90)}))
    pair = only(join([alone, other, said]))
    assert (pair.predicted, pair.measured, pair.against) == (said, (alone,), Evidence.SOLO)
    assert errors(pair)["forward device total live"] == (100, 90, -0.1)


def test_where_real_ranks_measured_it_a_rank_alone_is_a_prediction_like_others() -> None:
    rows = ledger(FORWARD, {PARAMETERS: (100, 100)})
    real, alone, said = measured(asked(), rows), predicted(asked(), rows, evidence="solo"), predicted(asked(), rows)
    assert [(pair.predicted, pair.against) for pair in join([real, alone, said])] == [
        (alone, Evidence.MEASURED),
        (said, Evidence.MEASURED),
    ]


def with_workspace(work: TrialSpec) -> SampleTrial:
    """Measured: tensors held 700 bytes at most, and a kernel worked in 900 while they held 600."""
    sizes = {PARAMETERS: (400, 400, 400), ACTIVATIONS: (0, 200, 300), Category.KERNEL_WORKSPACE: (0, 900, 0)}
    sizes[TOTAL] = (400, 1500, 700)
    rows = [
        row(FORWARD, category, live, peak).model_copy(update={"at_tensor_peak_bytes": of_tensors})
        for category, (live, peak, of_tensors) in sizes.items()
    ]
    return measured(work, rows)


def test_a_prediction_is_held_against_what_tensors_held_and_kernels_are_said_to_be_missing() -> None:
    said = predicted(asked(), ledger(FORWARD, {PARAMETERS: (400, 400), ACTIVATIONS: (0, 300)}))
    pair = only(join([with_workspace(asked()), said]))
    assert {cell.error for cell in pair.cells} == {0.0}
    assert (FORWARD[0], FORWARD[1], Place.DEVICE, Quantity.PEAK) in pair.totals
    assert Category.KERNEL_WORKSPACE not in {cell.category for cell in pair.cells}
    assert pair.unforeseen_bytes(Place.DEVICE) == 900
    assert pair.unforeseen_bytes(Place.HOST) == 0


def test_tables_and_validation_say_what_was_not_predicted() -> None:
    trials = [
        with_workspace(asked()),
        predicted(asked(), ledger(FORWARD, {PARAMETERS: (400, 400), ACTIVATIONS: (0, 300)})),
    ]
    names = {trial.spec.trial_id: trial.spec.evidence.value for trial in trials}
    caption = next(iter(predicted_parts(join(trials), names, 140))).caption
    assert "Not predicted and not in these peaks: workspace of kernels and collectives" in caption
    assert "up to 900 B" in caption
    text = document("errors", list(validation_parts(trials, join(trials), names)), level=1)
    assert "## Not predicted\n" in text
    assert "- simulated, device: up to 900 B\n" in text
