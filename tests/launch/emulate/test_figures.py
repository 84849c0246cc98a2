"""Whether what was played fits: each rank's GPU, and the host memory of each node."""

import pytest

from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.launch.emulate.figures import RankFit, Try, Verdict, host_bytes, needed_bytes, rank_fit
from zerobench.launch.emulate.part import Account, End
from zerobench.records.records import DeviceMemory, HostStanding, MemoryRow, RankRecord

GIB = 2**30
ENDS_WELL = [End.STOPPED, End.FINISHED]


def account(rank: int = 0, end: End = End.STOPPED, **figures) -> Account:
    return Account(rank=rank, end=end, touched_device=True, reserved_bytes=10 * GIB, outside_bytes=GIB, **figures)


def rows(place: Place, phase: Phase, step: StepKind = StepKind.STEADY, **parts: int) -> list[MemoryRow]:
    def row(category: Category, size: int) -> MemoryRow:
        return MemoryRow(
            step=step, phase=phase, place=place, category=category,
            live_bytes=size // 2, at_peak_bytes=size, own_peak_bytes=size,
        )  # fmt: skip

    named = {Category(name): size * GIB for name, size in parts.items()}
    return [row(Category.TOTAL, sum(named.values())), *(row(*pair) for pair in named.items())]


def device(step: StepKind, occupied: int | None, reserved: int) -> DeviceMemory:
    return DeviceMemory(
        step=step, phase=Phase.STEP, allocated_bytes=0, peak_allocated_bytes=0, reserved_bytes=0,
        peak_reserved_bytes=reserved * GIB, alloc_retries=0, nvml_used_bytes=None, nvml_process_bytes=None,
        peak_occupied_bytes=None if occupied is None else occupied * GIB,
    )  # fmt: skip


def record(
    memory: list[MemoryRow], on_device: tuple[DeviceMemory, ...] = (), host: HostStanding | None = None
) -> RankRecord:
    figures = {"memory": memory, "device_memory": list(on_device), "host_peak": host}
    return RankRecord.model_construct(**figures)  # type: ignore[arg-type] # no more is read of it


def standing(size: int) -> HostStanding:
    return HostStanding(at="the update", by_category={Category.FIRST_MOMENT: size})


def fit(rank: int, host: int | None = None, end: End = End.STOPPED) -> RankFit:
    memory = [] if host is None else rows(Place.HOST, Phase.STEP, parameters=host)
    return rank_fit(account(rank, end), record(memory), 80 * GIB, None)


def verdict(hosts: dict[int, int], per_node: int, host_memory: int | None) -> Verdict:
    ranks = tuple(fit(rank, host) for rank, host in hosts.items())
    return Verdict(ranks, per_node, None if host_memory is None else host_memory * GIB)


def test_a_rank_needs_its_fullest_segments_and_what_lies_outside_torch() -> None:
    assert needed_bytes(account(occupied_bytes=7 * GIB), None) == 8 * GIB


def test_without_that_count_it_needs_the_most_of_any_phase_or_of_the_allocators_peak_between_phases() -> None:
    phases = record([], (device(StepKind.FIRST, 9, 12), device(StepKind.STEADY, None, 5)))
    assert needed_bytes(account(peak_bytes=4 * GIB), phases) == 10 * GIB
    assert needed_bytes(account(peak_bytes=20 * GIB), phases) == 21 * GIB
    assert needed_bytes(account(peak_bytes=4 * GIB), record([])) == 11 * GIB  # all that was reserved
    assert needed_bytes(account(peak_bytes=4 * GIB), None) == 11 * GIB


@pytest.mark.parametrize("end", [End.OUT_OF_DEVICE_MEMORY, End.FAILED, End.REFUSED])
def test_of_a_rank_that_was_not_seen_to_its_end_nobody_knows_what_it_needs(end: End) -> None:
    assert needed_bytes(account(end=end, occupied_bytes=7 * GIB), None) is None
    whole = rank_fit(account(end=end), None, 8 * GIB, account(occupied_bytes=9 * GIB))
    assert whole.needed_bytes == 10 * GIB  # as it was on a GPU of boundless memory
    assert whole.is_known_whole
    assert not rank_fit(account(end=end), None, 8 * GIB, None).is_known_whole


@pytest.mark.parametrize(
    ("end", "touched", "fits"),
    [
        (End.STOPPED, True, True),
        (End.FINISHED, True, True),
        (End.OUT_OF_DEVICE_MEMORY, True, False),
        (End.FAILED, True, None),
        (End.STOPPED, False, None),
    ],
)
def test_a_rank_fits_that_used_its_gpu_and_did_not_end_for_want_of_memory(
    end: End, touched: bool, fits: bool | None
) -> None:
    said = account(end=end).model_copy(update={"touched_device": touched})
    assert rank_fit(said, None, 80 * GIB, None).fits is fits


def test_the_peak_is_that_of_the_steps_with_its_own_categories_and_start_up_has_another() -> None:
    memory = [
        *rows(Place.DEVICE, Phase.INIT, parameters=50, gradients=9),
        *rows(Place.DEVICE, Phase.BACKWARD, StepKind.FIRST, activations=30, parameters=2),
        *rows(Place.DEVICE, Phase.BACKWARD, StepKind.STEADY, activations=2, parameters=31, gradients=0),
        *rows(Place.HOST, Phase.STEP, parameters=90),
        *rows(Place.NVME, Phase.BACKWARD, parameters=2, first_moment=4),
        *rows(Place.NVME, Phase.STEP, parameters=4),
    ]
    found = rank_fit(account(), record(memory), 80 * GIB, None)
    assert found.peak is not None
    assert found.start is not None
    assert (found.peak.step, found.peak.phase, found.peak.total_bytes) == (StepKind.STEADY, Phase.BACKWARD, 33 * GIB)
    assert list(found.peak.categories.items()) == [(Category.PARAMETERS, 31 * GIB), (Category.ACTIVATIONS, 2 * GIB)]
    assert (found.start.phase, found.start.total_bytes) == (Phase.INIT, 59 * GIB)
    assert found.nvme_bytes == 3 * GIB  # what lies there at a phase's end, the most of all phases


@pytest.mark.parametrize("top", list(StepKind))
def test_the_categories_of_the_peak_are_those_of_its_own_step_whichever_that_is(top: StepKind) -> None:
    """The same phase of another step held others."""
    [other] = set(StepKind) - {top}
    memory = {
        top: rows(Place.DEVICE, Phase.BACKWARD, top, activations=30, parameters=4),
        other: rows(Place.DEVICE, Phase.BACKWARD, other, activations=2, parameters=29, gradients=1),
    }
    found = rank_fit(account(), record([row for step in StepKind for row in memory[step]]), 80 * GIB, None).peak
    assert found is not None
    assert (found.step, found.total_bytes) == (top, 34 * GIB)
    assert found.categories == {Category.ACTIVATIONS: 30 * GIB, Category.PARAMETERS: 4 * GIB}


def test_start_up_and_steps_need_what_their_own_segments_held_with_what_lies_outside_torch() -> None:
    """The larger of several rows each; what was reserved is told of the own GPU, what is needed of the play with room,
    if there was one.
    """
    own = record([], (device(StepKind.FIRST, 3, 5), device(StepKind.FIRST, 2, 4), device(StepKind.STEADY, 1, 6)))
    roomy = record([], (device(StepKind.FIRST, 9, 12), device(StepKind.STEADY, 7, 11), device(StepKind.STEADY, 8, 10)))
    alone = rank_fit(account(), own, 80 * GIB, None)
    assert alone.needs == {StepKind.FIRST: 4 * GIB, StepKind.STEADY: 2 * GIB}
    assert alone.reserved == {StepKind.FIRST: 5 * GIB, StepKind.STEADY: 6 * GIB}
    again = rank_fit(account(end=End.OUT_OF_DEVICE_MEMORY), own, 8 * GIB, account(), roomy)
    assert again.needs == {StepKind.FIRST: 10 * GIB, StepKind.STEADY: 9 * GIB}
    assert again.reserved == alone.reserved
    assert rank_fit(account(), None, 80 * GIB, None).needs == {}


@pytest.mark.parametrize(("outside", "shown"), [(GIB, 11 * GIB), (None, 10 * GIB), (0, 10 * GIB)])
def test_the_driver_would_show_what_torch_reserved_and_what_lies_outside(outside: int | None, shown: int) -> None:
    said = account().model_copy(update={"outside_bytes": outside})
    assert rank_fit(said, None, 80 * GIB, None).nvml_bytes == shown
    unknown = said.model_copy(update={"reserved_bytes": None})
    assert rank_fit(unknown, None, 80 * GIB, None).nvml_bytes is None


def test_the_host_is_that_of_the_play_with_room_where_there_was_one() -> None:
    small, whole = (record(rows(Place.HOST, Phase.STEP, parameters=size)) for size in (1, 3))
    found = rank_fit(account(end=End.OUT_OF_DEVICE_MEMORY), small, 8 * GIB, account(), whole)
    assert found.host is not None
    assert found.host.total_bytes == 3 * GIB


def test_what_a_rank_held_on_the_host_is_unknown_where_nobody_watched() -> None:
    assert host_bytes(record(rows(Place.HOST, Phase.STEP, parameters=3))) == 3 * GIB
    assert host_bytes(record(rows(Place.DEVICE, Phase.STEP, parameters=3))) is None
    assert host_bytes(None) is None


def test_what_lay_on_the_host_is_told_of_the_fullest_rank_as_it_was_with_room() -> None:
    own, roomy = record([], host=standing(5)), record([], host=standing(7))
    assert rank_fit(account(), own, GIB, None).host_standing == standing(5)
    assert rank_fit(account(), own, GIB, account(), roomy).host_standing == standing(7)
    assert rank_fit(account(), None, GIB, None).host_standing is None
    ranks = tuple(rank_fit(account(), one, GIB, None) for one in (own, None, roomy))
    assert Verdict(ranks, 3, None).host_standing == standing(7)
    assert Verdict(ranks[1:2], 1, None).host_standing is None


@pytest.mark.parametrize(
    ("hosts", "per_node", "needs", "basis"),
    [
        ({0: 5}, 1, 5, "its one rank"),
        ({0: 5}, 4, 20, "the emulated rank, times 4"),
        ({0: 5, 3: 7}, 4, 28, "the largest emulated rank, times 4"),
        ({0: 5, 1: 7}, 2, 12, "sum of its 2 ranks"),
        ({0: 5, 1: 1, 2: 4, 3: 3}, 2, 7, "sum of its 2 ranks"),  # the fuller of two nodes, not both
        ({0: 5, 1: 1, 2: 4}, 2, 10, "the largest emulated rank, times 2"),  # the second node is not whole
    ],
)
def test_a_node_holds_its_ranks_where_all_were_played_and_else_as_many_as_the_largest(
    hosts: dict[int, int], per_node: int, needs: int, basis: str
) -> None:
    found = verdict(hosts, per_node, None)
    assert found.host_node_bytes == needs * GIB
    assert found.host_basis == basis


@pytest.mark.parametrize(("memory", "over", "fits"), [(9, 1, False), (10, 0, True), (11, -1, True)])
def test_a_node_that_is_full_to_the_byte_still_fits(memory: int, over: int, fits: bool) -> None:
    found = verdict({0: 5}, 2, memory)
    assert found.host_over_bytes == over * GIB
    assert found.fits_host is found.fits is fits
    assert found.causes == ([] if fits else [Place.HOST])


def test_where_one_ranks_host_memory_is_unknown_the_nodes_is() -> None:
    found = Verdict((fit(0, 5), fit(1)), 2, 8 * GIB)
    assert found.host_node_bytes is None
    assert found.fits_host is None
    assert found.fits is True


def test_a_rank_that_was_not_seen_whole_tells_nothing_of_the_host() -> None:
    assert Verdict((fit(0, 5), fit(1, 5, End.OUT_OF_DEVICE_MEMORY)), 2, None).host_node_bytes is None


@pytest.mark.parametrize(
    ("ends", "fits", "causes"),
    [
        ([End.STOPPED, End.FINISHED], True, []),
        ([End.STOPPED, End.OUT_OF_DEVICE_MEMORY], False, [Place.DEVICE]),
        ([End.FAILED, End.OUT_OF_DEVICE_MEMORY], False, [Place.DEVICE]),
        ([End.STOPPED, End.FAILED], None, []),
    ],
)
def test_all_fit_if_each_rank_does_and_one_that_failed_leaves_it_open(
    ends: list[End], fits: bool | None, causes: list[Place]
) -> None:
    found = Verdict(tuple(fit(rank, end=end) for rank, end in enumerate(ends)), 2, None)
    assert found.fits_devices is found.fits is fits
    assert found.causes == causes
    assert (found.failed is None) == (End.FAILED not in ends)


def test_a_change_fits_if_it_ran_to_its_end_and_the_host_has_room() -> None:
    played = account()
    assert all(Try((), account(end=end)).fits for end in ENDS_WELL)
    assert not Try((), account(end=End.OUT_OF_DEVICE_MEMORY)).fits
    assert [Try((), played, None, 8, room).fits_host for room in (7, 8, None)] == [False, True, None]
    assert [Try((), played, None, 8, room).fits for room in (7, 8, None)] == [False, True, True]
    assert not Try((), account(end=End.FAILED), None, 8, 9).fits
