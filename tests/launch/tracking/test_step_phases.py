"""Of the steps of a tracked engine, those under the ledger are booked and timed ones allocate as if nobody looked."""

from collections.abc import Iterator

import pytest
import torch

from zerobench.common.vocabulary import Phase
from zerobench.launch.tracking.step_phases import StepPhases
from zerobench.rank.ledger.cpu_book import CpuBook, opened_book
from zerobench.rank.ledger.device import describe_device
from zerobench.rank.ledger.engine_tensors import walk_module
from zerobench.rank.ledger.recorder import NvmeAccount

MEGABYTE = 1_000_000


def steps_of(*kinds: str) -> StepPhases:
    model = torch.nn.Linear(4, 4)
    return StepPhases(
        describe_device(torch.device("cpu")), model, lambda: walk_module(model), NvmeAccount(None, 0), list(kinds)
    )


@pytest.fixture
def book() -> Iterator[CpuBook]:
    book = opened_book()
    yield book
    book.close()


def booked_within(book: CpuBook) -> int:
    """What the book says of a megabyte that is taken now."""
    before = book.total_bytes()
    taken = torch.empty(MEGABYTE // 4)
    return book.total_bytes() - before if taken.nbytes == MEGABYTE else -1


def test_memory_steps_are_booked_and_timed_ones_are_not(book):
    steps = steps_of("first", "warmup", "memory", "timed")
    booked = {}
    while not steps.is_over:
        kind = steps.kind
        steps.open()
        steps.enter(Phase.FORWARD)
        booked[kind] = booked_within(book)
        steps.close()
    assert booked == {"first": MEGABYTE, "warmup": MEGABYTE, "memory": MEGABYTE, "timed": 0}


def test_of_the_step_before_a_memory_step_it_is_known_who_was_born_where():
    steps = steps_of("first", "warmup", "warmup", "memory", "warmup")
    are_seen = []
    while not steps.is_over:
        steps.open()
        steps.enter(Phase.FORWARD)
        are_seen.append(steps.ledger.counter.find(torch.empty(1)) is not None)
        steps.close()
    assert are_seen == [True, False, True, True, False]


def test_after_the_last_step_and_after_one_that_failed_nothing_is_booked(book):
    steps = steps_of("memory")
    steps.open()
    steps.enter(Phase.FORWARD)
    steps.close()
    assert booked_within(book) == 0
    steps = steps_of("memory", "timed")
    steps.open()
    steps.enter(Phase.FORWARD)
    assert booked_within(book) == MEGABYTE
    steps.drop(ValueError("it failed"))
    assert booked_within(book) == 0
