"""torch's figures of a refusal: which of them tell that there was room in pieces, and who else held memory."""

import pytest

from zerobench.report.explain.torch_message import TorchMessage, messages_in

MIB, GIB = 2**20, 2**30


def message(asked: float, free: float, unallocated: float, allowed: int | None = None) -> TorchMessage:
    """A refusal on a GPU of 80 GiB; sizes in GiB."""
    sizes = [int(size * GIB) for size in (asked, free, unallocated)]
    return TorchMessage(
        "x", None, (), on_host=False, asked_bytes=sizes[0], free_bytes=sizes[1], unallocated_bytes=sizes[2],
        allowed_bytes=allowed, total_bytes=80 * GIB,
    )  # fmt: skip


@pytest.mark.parametrize(("asked", "free", "unallocated", "in_pieces"), [
    (2.0, 1.0, 1.5, True),
    (2.0, 1.0, 0.5, False),
    (2.0, 1.0, 1.0, None),
    (2.0, 1.0, 1.01, None),
    (2.0, 1.0, 1.02, True),
    (2.0, 1.0, 0.99, None),
    (2.0, 1.0, 0.98, False),
    (2.0, 2.02, 0.0, None),
    (2.0, 3.0, 0.0, None),
])  # fmt: skip
def test_what_its_rounding_leaves_open_is_not_told(
    asked: float, free: float, unallocated: float, in_pieces: bool | None
) -> None:
    """Each of three sizes in GiB may be off by half a hundredth of a GiB: 0.015 together. Nor is it told where the
    driver refused what it counts as free.
    """
    assert message(asked, free, unallocated).is_in_pieces is in_pieces


@pytest.mark.parametrize("lacking", ["asked_bytes", "free_bytes", "unallocated_bytes"])
def test_without_one_of_the_three_nothing_is_told(lacking: str) -> None:
    known = vars(message(2.0, 1.0, 1.5))
    assert TorchMessage(**known | {lacking: None}).is_in_pieces is None


@pytest.mark.parametrize(("allowed", "is_below"), [
    (None, False), (40 * GIB, True), (80 * GIB - 1, True), (80 * GIB, False), (90 * GIB, False)
])  # fmt: skip
def test_a_process_that_may_take_less_than_the_device_has_is_below_a_limit(allowed: int | None, is_below: bool) -> None:
    found = message(2.0, 1.0, 1.5, allowed)
    assert found.is_below_a_limit is is_below
    assert found.is_in_pieces is (None if is_below else True)


SAYS = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. "
    "GPU 0 has a total capacity of 80.00 GiB of which 1.00 GiB is free. "
)


@pytest.mark.parametrize(("others", "count", "nbytes"), [
    ("", 0, None),
    ("Process 7 has 3.00 GiB memory in use. ", 1, 3 * GIB),
    ("Process 7 has 3.00 GiB memory in use. Process 812 has 512.00 MiB memory in use. ", 2, 3 * GIB + 512 * MIB),
    ("Process 7 has 0 bytes memory in use. ", 1, None),
])  # fmt: skip
def test_what_other_processes_hold_is_added_up(others: str, count: int, nbytes: int | None) -> None:
    [found] = messages_in(SAYS + others)
    assert (found.other_processes, found.other_processes_bytes) == (count, nbytes)


@pytest.mark.parametrize(("process", "known"), [
    ("70.00 GiB", 70 * GIB), ("80.00 GiB", 80 * GIB), ("80.01 GiB", None), ("17179869184.00 GiB", None),
    ("0 bytes", None),
])  # fmt: skip
def test_what_nvml_cannot_know_of_a_process_is_not_known(process: str, known: int | None) -> None:
    [found] = messages_in(f"{SAYS}Including non-PyTorch memory, this process has {process} memory in use. ")
    assert found.process_bytes == known


@pytest.mark.parametrize(("process", "allocated", "unallocated", "outside"), [
    (70, 60, 5, 5), (70, 60, 10, 0), (70, 65, 10, 0), (None, 60, 5, None), (70, None, 5, None), (70, 60, None, None)
])  # fmt: skip
def test_outside_of_torch_lies_what_the_process_holds_beside_torchs_reserve(
    process: int | None, allocated: int | None, unallocated: int | None, outside: int | None
) -> None:
    known = {"process_bytes": process, "allocated_bytes": allocated, "unallocated_bytes": unallocated}
    assert TorchMessage(**vars(message(2.0, 1.0, 1.0)) | known).outside_torch_bytes == outside


def test_before_2_1_what_is_free_within_torchs_segments_is_what_it_reserved_less_what_it_gave_out() -> None:
    old = (
        "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 80.00 GiB total capacity; 60.00 GiB already allocated; "
        "1.00 GiB free; 70.50 GiB reserved in total by PyTorch)"
    )
    [found] = messages_in(old)
    assert (found.total_bytes, found.allocated_bytes, found.free_bytes) == (80 * GIB, 60 * GIB, GIB)
    assert found.unallocated_bytes == int(10.5 * GIB)


@pytest.mark.parametrize(("text", "asked"), [
    ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 123 bytes. Error code 12", 123),
    ("MemoryError: Unable to allocate 1.50 GiB for an array", int(1.5 * GIB)),
    ("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 512. MiB for an array", 512 * MIB),
    ("unable to mmap 99 bytes from file </x>: Cannot allocate memory (12)", 99),
    ("std::bad_alloc", None),
    ("[Errno 12] Cannot allocate memory", None),
    ("MemoryError", None),
])  # fmt: skip
def test_the_hosts_refusals_are_read_beside_torchs(text: str, asked: int | None) -> None:
    [found] = messages_in(text)
    assert (found.on_host, found.asked_bytes, found.total_bytes) == (True, asked, None)


def test_a_refusal_that_is_printed_twice_counts_once_and_two_ranks_are_two() -> None:
    again = [f"[rank{rank}]: {SAYS}" for rank in (1, 0, 1)]
    assert [found.rank for found in messages_in("\n".join(again))] == [1, 0]


def test_a_message_that_a_terminal_broke_is_read_on_up_to_three_lines_and_not_into_another_process() -> None:
    head, rest = SAYS.split(" of which ")
    [found] = messages_in(f"{head}\nof which {rest}")
    assert found.free_bytes == GIB
    [cut] = messages_in(f"[rank0]: {head}\n[rank1]: of which {rest}")
    assert cut.free_bytes is None
    [far] = messages_in(f"{head}\n\n\n\nof which {rest}")
    assert far.free_bytes is None
