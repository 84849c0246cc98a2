"""A ledger's figures besides categories: process memory, sites of unnamed bytes, other threads, other hooks."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import pytest
import torch

from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.rank.ledger import host
from zerobench.rank.ledger.engine_tensors import walk_module
from zerobench.rank.ledger.held import UNSEEN
from zerobench.rank.ledger.ledger import Ledger
from zerobench.rank.ledger.sites import Origin, Site
from zerobench.rank.ledger.storages import StorageCounter
from zerobench.records.records import MemoryRow, ProcessMemory

CPU = torch.device("cpu")
MEGABYTE = 1_000_000
STEADY = StepKind.STEADY


def row(ledger: Ledger, phase: Phase, category: Category, place: Place = Place.DEVICE) -> MemoryRow:
    (found,) = [r for r in ledger.rows() if (r.step, r.phase, r.place, r.category) == (STEADY, phase, place, category)]
    return found


def test_the_rest_of_the_process_is_what_torch_did_not_allocate():
    ledger, kept = Ledger(CPU, list), []
    phases = (Phase.FORWARD, Phase.BACKWARD, Phase.STEP)
    with ledger.tracking():
        for phase in phases:
            with ledger.phase(STEADY, phase):
                kept.append(torch.ones(25 * MEGABYTE))
    rest = [row(ledger, phase, Category.REST_OF_PROCESS, Place.HOST).live_bytes for phase in phases]
    assert abs(rest[2] - rest[1]) < 20 * MEGABYTE  # of 100 that torch took; with the first it starts its threads


def process_of(ledger: Ledger, phase: Phase = Phase.FORWARD) -> ProcessMemory:
    (found,) = [one for one in ledger.process_rows() if (one.step, one.phase) == (STEADY, phase)]
    return found


@pytest.mark.skipif(not host.reset_peak_resident(), reason="the kernel keeps no peak that can be reset")
@pytest.mark.parametrize("sizes", [(200, 0), (0, 200)])
def test_of_a_phase_that_is_entered_twice_the_larger_peak_of_the_process_stands(sizes):
    ledger, peaks = Ledger(CPU, list), list[int]()
    with ledger.tracking():
        for size in sizes:
            with ledger.phase(STEADY, Phase.FORWARD):
                used = bytearray(b"x") * (size * MEGABYTE)
                del used
            peaks.append(process_of(ledger).peak_rss_bytes or 0)
    now = host.resident_bytes()
    assert peaks[1] >= now + 150 * MEGABYTE
    assert peaks[1] == max(peaks)


def test_what_is_forgotten_of_a_step_is_forgotten_of_the_process_too():
    ledger = Ledger(CPU, list)
    with ledger.tracking():
        for kind in StepKind:
            with ledger.phase(kind, Phase.FORWARD):
                pass
    ledger.forget(STEADY)
    assert {one.step for one in ledger.process_rows()} == {row.step for row in ledger.rows()} == {StepKind.FIRST}


def test_after_the_process_was_left_no_more_is_said_of_it():
    ledger = Ledger(CPU, list)
    with ledger.tracking():
        ledger.leave_process()
        with ledger.phase(STEADY, Phase.FORWARD):
            pass
    assert ledger.process_rows() == []
    assert Category.REST_OF_PROCESS not in {row.category for row in ledger.rows()}


class Places:
    """Says where what is born now was born, as the test has it."""

    def __init__(self) -> None:
        self.name = "elsewhere"
        self.proves: Category | Origin | None = None

    def __call__(self) -> Site:
        return Site(self.name, self.proves)


def test_the_places_of_nameless_bytes_are_told_largest_first_each_with_its_largest():
    places = Places()
    ledger = Ledger(CPU, list, sites=places)  # type: ignore[arg-type] # it is only called
    kept = []
    with ledger.tracking(), ledger.phase(STEADY, Phase.FORWARD):
        for name, megabytes in (("small", 5), ("large", 9), ("small", 6), ("small", 1)):
            places.name = f"{name} of this test"
            kept.append(torch.ones(megabytes * MEGABYTE))
    told = [(name, nbytes) for name, nbytes in ledger.unattributed_sites(1000) if name.endswith("of this test")]
    assert told == [("large of this test", 36 * MEGABYTE), ("small of this test", 24 * MEGABYTE)]
    assert len(ledger.unattributed_sites(1)) == 1


def test_a_gradient_has_its_name_before_a_hook_of_the_engine_takes_it_away():
    model = torch.nn.Linear(512, 512, bias=False)
    ledger = Ledger(CPU, lambda: walk_module(model))

    def take_away(parameter: torch.Tensor) -> None:
        parameter.grad = None

    model.weight.register_post_accumulate_grad_hook(take_away)
    with ledger.tracking(model), ledger.phase(STEADY, Phase.BACKWARD):
        model(torch.ones(8, 512)).sum().backward()
    gradients = row(ledger, Phase.BACKWARD, Category.GRADIENTS)
    assert (gradients.live_bytes, gradients.own_peak_bytes) == (0, 512 * 512 * 4)


@pytest.mark.parametrize(("looks", "named_bytes"), [(True, 2 * 64 * 512 * 4), (False, 0)])
def test_what_another_thread_computes_is_counted_and_named_where_the_ledger_looks_at_it(looks, named_bytes):
    places, model, outputs = Places(), torch.nn.Linear(512, 512), []
    ledger = Ledger(CPU, lambda: walk_module(model), sites=places)  # type: ignore[arg-type] # it is only called

    def compute() -> None:
        with ledger.elsewhere() if looks else nullcontext():
            outputs.append(torch.tanh(model(torch.ones(64, 512))))  # the input and the result are kept for backward

    with ledger.tracking(), ledger.phase(STEADY, Phase.FORWARD):
        places.proves = Origin.FORWARD
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join()
    outputs[0].sum().backward()  # which lets go of what is kept: hooks that give it back unchanged make a cycle in C++
    found = [r.live_bytes for r in ledger.rows() if r.category is Category.ACTIVATIONS and r.place is Place.DEVICE]
    assert sum(found) == named_bytes


def test_what_nobody_saw_on_a_cpu_lies_where_its_tensors_do():
    before, kept = Ledger(CPU, list), []
    with before.tracking():
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            with before.phase(STEADY, phase):
                if phase is Phase.BACKWARD:
                    thread = threading.Thread(target=lambda: kept.append(torch.ones(5 * MEGABYTE)))
                    thread.start()
                    thread.join()
    nameless = [row(before, phase, Category.UNATTRIBUTED).live_bytes for phase in (Phase.FORWARD, Phase.BACKWARD)]
    assert nameless[1] - nameless[0] >= 20 * MEGABYTE


@pytest.mark.parametrize("phase", [Phase.INIT, Phase.FORWARD])
def test_what_autograd_saves_is_an_activation_in_the_passes_and_a_temporary_of_start_up(phase):
    places, weight = Places(), torch.nn.Parameter(torch.ones(512, 512))
    ledger = Ledger(CPU, list, sites=places)  # type: ignore[arg-type] # it is only called
    with ledger.tracking(), ledger.phase(STEADY, phase):
        places.proves = Origin.FORWARD
        torch.tanh(weight).sum().backward()
    peaks = {one.category: one.own_peak_bytes or 0 for one in ledger.rows() if one.place is Place.DEVICE}
    category = Category.TEMPORARIES if phase is Phase.INIT else Category.ACTIVATIONS
    assert peaks[category] >= 512 * 512 * 4  # tanh's result, which is gone at the phase's end
    assert (Category.ACTIVATIONS in peaks) == (phase is Phase.FORWARD)


class PageLocked(StorageCounter):
    """As if all memory were page-locked."""

    def _is_page_locked(self, _tensor: torch.Tensor, _device: str) -> bool:
        return True


@pytest.mark.parametrize("in_own_process", [False, True])
def test_what_a_block_has_beyond_its_storage_is_rounding_for_as_long_as_the_storage_lives(in_own_process):
    kept: list[torch.Tensor] = []
    ledger = Ledger(CPU, list, PageLocked, in_own_process=in_own_process)
    with ledger.tracking():
        with ledger.phase(STEADY, Phase.FORWARD):
            pass
        with ledger.phase(STEADY, Phase.BACKWARD):
            kept.append(torch.empty(513, dtype=torch.uint8))
            gone = torch.empty(700, dtype=torch.uint8)
            del gone
    rounding = {
        row.phase: row for row in ledger.rows() if row.category is Category.ALLOCATOR_ROUNDING and row.live_bytes
    }
    before = rounding[Phase.FORWARD].live_bytes if Phase.FORWARD in rounding else 0  # of what other tests left
    after = rounding[Phase.BACKWARD]
    assert after.live_bytes - before == 1024 - 513
    assert after.own_peak_bytes == after.live_bytes + 1024 - 700


def test_what_is_held_now_is_told_by_what_for_and_by_place_of_birth_where_that_was_seen():
    kept, places = list[torch.Tensor](), Places()
    unseen = threading.Thread(target=lambda: kept.append(torch.ones(5 * MEGABYTE)))
    model = torch.nn.Linear(512, 512, bias=False)
    ledger = Ledger(CPU, lambda: walk_module(model), in_own_process=False, sites=places)  # type: ignore[arg-type] # it is only called
    with ledger.tracking(model), ledger.phase(STEADY, Phase.FORWARD):
        places.name = "here"
        kept.append(torch.ones(3 * MEGABYTE))
        unseen.start()
        unseen.join()
        held = ledger.held(Phase.FORWARD)
    assert held.by_site["here"] == 12 * MEGABYTE
    assert held.by_site[UNSEEN] >= 20 * MEGABYTE
    assert held.by_category[Category.PARAMETERS] == held.by_module["Linear"] == 512 * 512 * 4
    assert Category.ALLOCATOR_ROUNDING not in {row.category for row in ledger.rows()}  # no memory is page-locked


def test_what_a_phase_made_keeps_its_name_until_the_phase_is_over():
    """A refusal comes in the middle: what was just cast is a temporary, what outlived its phase is none."""
    kept, places = list[torch.Tensor](), Places()
    ledger = Ledger(CPU, list, in_own_process=False, sites=places)  # type: ignore[arg-type] # it is only called
    places.name, places.proves = "cast", Category.TEMPORARIES
    with ledger.tracking():
        with ledger.phase(STEADY, Phase.BACKWARD):
            kept.append(torch.ones(3 * MEGABYTE))
            within = ledger.held(Phase.BACKWARD)
        with ledger.phase(STEADY, Phase.STEP):
            later = ledger.held(Phase.STEP)
    assert within.by_category[Category.TEMPORARIES] == 12 * MEGABYTE
    assert later.by_category[Category.TEMPORARIES] == 0
    assert later.by_category[Category.UNATTRIBUTED] - within.by_category[Category.UNATTRIBUTED] == 12 * MEGABYTE
