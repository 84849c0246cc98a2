"""Whether a trial fits, by how much, and what counts."""

import dataclasses

from tests.report.predicted_trial import asked, reserved, trial
from tests.report.sample_run import GIB, failed_trial
from zerobench.records import Category, ContextMemory, Failure, Phase, Status, StepKind
from zerobench.report.capacity import Capacity, device_need, fits

FIRST_STEP, STEADY = (StepKind.FIRST, Phase.STEP), (StepKind.STEADY, Phase.BACKWARD)
DEVICE = {
    FIRST_STEP: {Category.PARAMETERS: 10 * GIB},
    STEADY: {Category.PARAMETERS: 10 * GIB, Category.ACTIVATIONS: 4 * GIB},
}
CONTEXT = ContextMemory(before_bytes=None, context_bytes=GIB, collectives_bytes=2 * GIB)
ALLOCATOR = [reserved(*FIRST_STEP, 11 * GIB), reserved(*STEADY, 15 * GIB)]


def test_a_device_needs_what_is_reserved_and_what_lies_outside_torch() -> None:
    sample = trial(asked(), DEVICE, allocator=ALLOCATOR, context=CONTEXT)
    need = device_need(sample)
    assert need is not None
    assert (need.tensors_bytes, need.slack_bytes) == (14 * GIB, GIB)
    fit = fits(sample, Capacity(device_bytes=20 * GIB))
    assert fit.fits
    assert (fit.device_needed_bytes, fit.device_room_bytes) == (18 * GIB, 2 * GIB)


def test_free_segments_that_start_up_left_are_no_need() -> None:
    """The allocator gives them back before it fails; a block that shares its segment with another stays."""
    left = [reserved(*FIRST_STEP, 19 * GIB, 11 * GIB), reserved(*STEADY, 19 * GIB, 15 * GIB)]
    need = device_need(trial(asked(), DEVICE, allocator=left, context=CONTEXT))
    assert need is not None
    assert (need.tensors_bytes, need.slack_bytes, need.total_bytes) == (14 * GIB, GIB, 18 * GIB)


def test_a_device_needs_no_less_than_was_in_use_and_asked_for_when_it_refused() -> None:
    """Where there is room from the beginning, less may do."""
    sample = trial(asked(), DEVICE, allocator=ALLOCATOR, context=CONTEXT)
    for needed_bytes in (17 * GIB, 25 * GIB):
        told = Failure(message="it needs more", bytes_needed=needed_bytes)
        refused = [rank.model_copy(update={"failure": told}) for rank in sample.ranks]
        need = device_need(dataclasses.replace(sample, ranks=refused))
        assert need is not None
        assert need.total_bytes == max(needed_bytes, 18 * GIB)
        assert need.tensors_bytes == 14 * GIB


def test_one_byte_too_many_does_not_fit() -> None:
    sample = trial(asked(), DEVICE)
    assert fits(sample, Capacity(device_bytes=14 * GIB)).fits
    fit = fits(sample, Capacity(device_bytes=14 * GIB - 1))
    assert fit.fits is False
    assert fit.device_room_bytes == -1


def test_a_node_needs_the_host_memory_of_all_of_its_ranks() -> None:
    host = {STEADY: {Category.MASTER_WEIGHTS: 3 * GIB}}
    sample = trial(asked(offload_optimizer="cpu", optimizer="cpu_adam"), DEVICE, host)
    fit = fits(sample, Capacity(80 * GIB, host_bytes_per_node=20 * GIB))
    assert (fit.host_needed_bytes_per_node, fit.host_room_bytes, fit.fits) == (24 * GIB, -4 * GIB, False)
    assert fits(sample, Capacity(80 * GIB)).fits


def test_the_process_that_predicts_is_no_memory_of_the_trial() -> None:
    host = {STEADY: {Category.MASTER_WEIGHTS: GIB, Category.REST_OF_PROCESS: 5 * GIB}}
    predicted = trial(asked(), DEVICE, host)
    assert fits(predicted, Capacity(80 * GIB)).host_needed_bytes_per_node == 8 * GIB
    measured = trial(asked(evidence="measured"), DEVICE, host)
    assert fits(measured, Capacity(80 * GIB)).host_needed_bytes_per_node == 48 * GIB


def test_what_is_swapped_must_fit_on_the_drives() -> None:
    swapped = {STEADY: {Category.OPTIMIZER_STATES_ON_NVME: 100 * GIB}}
    sample = trial(asked(), DEVICE, swapped=swapped)
    fit = fits(sample, Capacity(80 * GIB, nvme_bytes_per_node=700 * GIB))
    assert (fit.nvme_needed_bytes_per_node, fit.fits) == (800 * GIB, False)


def test_a_trial_that_nobody_watched_is_not_judged_and_one_that_ran_out_of_memory_is() -> None:
    failure = Failure(message="it stopped")
    crashed = failed_trial(asked(), failure, Status.CRASH)
    fit = fits(crashed, Capacity(80 * GIB))
    assert (fit.fits, fit.device_needed_bytes, fit.device_room_bytes) == (None, None, None)
    assert fits(failed_trial(asked(), failure), Capacity(80 * GIB)).fits is False


def test_the_rank_that_needs_most_decides() -> None:
    small, large = trial(asked(), DEVICE), trial(asked(), DEVICE, context=CONTEXT)
    both = dataclasses.replace(small, ranks=[*small.ranks, *large.ranks])
    assert fits(both, Capacity(80 * GIB)).device_needed_bytes == 17 * GIB
