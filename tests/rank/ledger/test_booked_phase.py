"""Each block of a booked phase gets the category of its storage, and without a storage that of its operation."""

from zerobench.common.vocabulary import Category, Place
from zerobench.rank.ledger.booked_phase import BookedPhase, Verdict
from zerobench.rank.ledger.cpu_book import GLOO, HOROVOD, Change, Pages
from zerobench.rank.ledger.storages import Storage

NAMES = {"weight": (Place.DEVICE, Category.PARAMETERS), "offloaded": (Place.HOST, Category.FIRST_MOMENT)}


def verdict(storage: Storage) -> Verdict:
    return NAMES.get(storage.birth, (Place.DEVICE, None))


def booked(changes: list[Change], standing: list[Change], owners: dict[int, str]) -> BookedPhase:
    storages = [Storage(serial, 0, "cpu", 0, name, block=serial) for serial, name in owners.items()]
    return BookedPhase(Pages(changes, standing), storages, verdict, Place.DEVICE)


def test_a_block_taken_and_given_back_within_one_operation_is_a_kernels_workspace():
    changes = [Change(1, 10, 5), Change(2, 1, 5), Change(2, -1, 5)]
    here = booked(changes, [Change(1, 10, 0)], {1: "weight"}).composition(Place.DEVICE)
    assert here.at_peak == {Category.PARAMETERS: 10, Category.KERNEL_WORKSPACE: 1}
    assert here.total_peak == 11


def test_what_gloos_threads_take_is_a_collectives_workspace_whoever_gives_it_back_within_the_phase():
    return_memory = booked([Change(1, 10, GLOO), Change(1, -10, 7)], [], {}).composition(Place.DEVICE)
    assert return_memory.at_peak == {Category.KERNEL_WORKSPACE: 10}
    kept = booked([Change(1, 10, GLOO)], [Change(1, 10, 0)], {}).composition(Place.DEVICE)
    assert kept.at_peak == {None: 10}


def test_what_horovods_thread_takes_is_its_buffer_for_as_long_as_it_keeps_it():
    for taken, standing in (([Change(1, 10, HOROVOD)], [Change(1, 10, HOROVOD)]), ([], [Change(1, 10, HOROVOD)])):
        phase = booked(taken, standing, {})
        assert phase.composition(Place.DEVICE).live == {Category.REDUCE_BUFFERS: 10}
        assert phase.largest_unseen_bytes() == 0
    gradient = booked([], [Change(1, 10, HOROVOD)], {1: "weight"})
    assert gradient.composition(Place.DEVICE).live == {Category.PARAMETERS: 10}


def test_a_block_that_outlives_its_operation_or_had_none_has_no_name():
    for born, died in ((5, 6), (0, 0), (5, HOROVOD)):
        here = booked([Change(1, 10, born), Change(1, -10, died)], [], {}).composition(Place.DEVICE)
        assert here.at_peak == {None: 10}


def test_what_tensors_hold_at_most_is_told_apart_from_the_peak():
    changes = [Change(1, 50, 1), Change(2, 40, 2), Change(2, -40, 2), Change(3, 20, 3)]
    standing = [Change(1, 50, 0), Change(3, 20, 0)]
    here = booked(changes, standing, {1: "weight", 3: "other"}).composition(Place.DEVICE)
    assert here.at_peak == {Category.PARAMETERS: 50, Category.KERNEL_WORKSPACE: 40, None: 0}
    assert here.at_tensor_peak == {Category.PARAMETERS: 50, None: 20}


def test_each_place_has_its_own_blocks_and_unseen_ones_lie_where_they_are_said_to():
    phase = booked([], [Change(1, 10, 0), Change(2, 20, 0), Change(3, 5, 0)], {1: "weight", 2: "offloaded"})
    assert phase.composition(Place.HOST).live == {Category.FIRST_MOMENT: 20}
    assert phase.composition(Place.DEVICE).live == {Category.PARAMETERS: 10, None: 5}
    assert phase.largest_unseen_bytes() == 5


def test_of_two_storages_on_one_block_the_one_with_a_name_decides():
    storages = [Storage(n, 0, "cpu", 0, name, block=1) for n, name in enumerate(("other", "weight", "other"))]
    here = BookedPhase(Pages([], [Change(1, 10, 0)]), storages, verdict, Place.DEVICE)
    assert here.composition(Place.DEVICE).live == {Category.PARAMETERS: 10}
