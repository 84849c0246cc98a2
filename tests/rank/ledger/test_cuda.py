"""The CUDA allocator's history is matched to the tensors that owned its blocks (on recorded histories; see `gpu`)."""

from typing import Any

import pytest
import torch

from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.rank.ledger.cuda import AllocatorTotals, apply_totals, compose
from zerobench.rank.ledger.ledger import Ledger
from zerobench.rank.ledger.storages import Storage


def storage(serial, pointer, nbytes, *, alive=True):
    return Storage(serial, nbytes, "cuda", pointer, birth=None, alive=alive)


def entry(action, address, nbytes):
    return {"action": "".join(list(action)), "addr": address, "size": nbytes}  # torch's words are strings of its own


def named(storages):
    return storages.get


def test_a_block_takes_the_name_of_the_tensor_that_owned_it():
    grad = storage(1, 0x1000, 512)
    trace = [entry("segment_alloc", 0x1000, 2**21), entry("alloc", 0x1000, 512), {"action": "oom", "size": 2**40}]
    result = compose(trace, [grad], [(grad, 512)], named({grad: Category.GRADIENTS}))
    assert result.live == {Category.GRADIENTS: 512}


def test_what_was_born_before_anybody_looked_is_its_tensors_and_no_workspace_of_that_size():
    weight = storage(1, 0x5000, 4096)
    trace = [entry("alloc", 0x5000, 4096)]
    result = compose(trace, [weight], [], named({weight: Category.PARAMETERS}), [(0x5000, 4096)], {4096})
    assert result.live == result.at_peak == {Category.PARAMETERS: 4096}


WORKSPACE = 2**25
OWN, TEMPORARY = Category.ACTIVATIONS, Category.TEMPORARIES
RULES: dict[str, tuple[list[tuple[int, int]], tuple[int, int] | None, dict[str, Any]]] = {
    "a workspace that no tensor owned and that is given back is a temporary": (
        [(0x5000, 4096), (0x9000, 100), (0x5000, -4096)],
        (0x9000, 100),
        {"at_peak": {TEMPORARY: 4096, OWN: 100}, "total_peak": 4196},
    ),
    "a workspace at the address of a later tensor does not take its name": (
        [(0x5000, 4096), (0x5000, -4096), (0x5000, 512)],
        (0x5000, 512),
        {"live": {OWN: 512}, "at_peak": {TEMPORARY: 4096, OWN: 0}},
    ),
    "nor does one that is as large as that tensor": (
        [(0x5000, 512), (0x5000, -512), (0x5000, 512)],
        (0x5000, 512),
        {"live": {OWN: 512}, "own_peak": {OWN: 512, TEMPORARY: 512}},
    ),
    "a tensor whose block was given back before it takes the block that it had": (
        [(0x5000, 512), (0x5000, -512), (0x5000, 4096)],
        (0x5000, 512),
        {"own_peak": {OWN: 512, None: 4096}},
    ),
    "a block from before the phase without an owner was no workspace of it": (
        [(0x5000, -4096)],
        None,
        {"at_peak": {None: 4096}},
    ),
    "a block that stays has a name where it is as large as the matrix library's workspace": (
        [(0x5000, WORKSPACE), (0x9000, WORKSPACE - 512)],
        None,
        {"live": {Category.WORKSPACES: WORKSPACE, None: WORKSPACE - 512}},
    ),
    "and is a temporary where it does not stay": (
        [(0x5000, WORKSPACE), (0x5000, -WORKSPACE)],
        None,
        {"at_peak": {TEMPORARY: WORKSPACE}},
    ),
}
"""Blocks by their addresses, given out and back; which of them a tensor owned; and what comes of it."""


@pytest.mark.parametrize(("blocks", "owned", "found"), RULES.values(), ids=RULES)
def test_each_block_has_the_name_of_its_owner_or_of_what_it_was(blocks, owned, found):
    trace = [entry("alloc" if size > 0 else "free_requested", address, abs(size)) for address, size in blocks]
    tensors = [storage(1, *owned)] if owned else []
    born = [(tensor, tensor.nbytes) for tensor in tensors]
    result = compose(trace, tensors, born, named(dict.fromkeys(tensors, OWN)), workspaces={WORKSPACE})
    assert {name: getattr(result, name) for name in found} == found


def test_a_tensor_from_before_the_phase_counts_until_it_is_freed():
    old = storage(1, 0x1000, 1000, alive=False)
    new = storage(2, 0x2000, 600)
    trace = [entry("free_requested", 0x1000, 1000), entry("alloc", 0x2000, 600)]
    result = compose(
        trace, [new], [(old, -1000), (new, 600)], named({old: Category.ACTIVATIONS, new: Category.GRADIENTS})
    )
    assert result.total_peak == 1000
    assert result.at_peak[Category.ACTIVATIONS] == 1000


def test_an_address_used_twice_is_matched_in_order():
    first, second = storage(1, 0x1000, 512, alive=False), storage(2, 0x1000, 512)
    trace = [entry("alloc", 0x1000, 512), entry("free_requested", 0x1000, 512), entry("alloc", 0x1000, 512)]
    events = [(first, 512), (first, -512), (second, 512)]
    names = named({first: Category.TEMPORARIES, second: Category.GRADIENTS})
    assert compose(trace, [second], events, names).live[Category.GRADIENTS] == 512


def test_what_the_names_do_not_cover_of_the_allocators_total_is_left_without_a_name():
    grad = storage(1, 0x1000, 500)
    result = compose([entry("alloc", 0x1000, 500)], [grad], [(grad, 500)], named({grad: Category.GRADIENTS}))
    totals = AllocatorTotals(live_bytes=912, peak_bytes=1012, live_rounding_bytes=12, peak_rounding_bytes=12)
    result = apply_totals(result, totals)
    assert result.live == {Category.GRADIENTS: 500, Category.ALLOCATOR_ROUNDING: 12, None: 400}
    assert result.at_peak[None] == 500
    assert result.own_peak[None] == 500


def test_a_workspace_from_before_the_phase_is_known_by_the_allocators_list_of_blocks():
    held = [(0x5000, WORKSPACE), (0x9000, 4096)]
    result = compose([], [], [], named({}), held, {WORKSPACE})
    assert result.live == result.at_peak == {Category.WORKSPACES: WORKSPACE, None: 4096}


def test_a_tensor_as_large_as_a_workspace_keeps_its_own_name():
    weight = storage(1, 0x5000, WORKSPACE)
    result = compose([], [weight], [], named({weight: Category.PARAMETERS}), [(0x5000, WORKSPACE)], {WORKSPACE})
    assert result.live == {Category.PARAMETERS: WORKSPACE}


@pytest.mark.gpu
def test_on_a_gpu_the_ledger_equals_the_allocator_and_names_a_training_step():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    device = torch.device("cuda", 0)
    layer = torch.nn.Linear(2048, 2048, device=device)
    ledger = Ledger(device, list)
    torch.cuda.reset_peak_memory_stats(device)
    with ledger.tracking(layer), ledger.phase(StepKind.STEADY, Phase.BACKWARD):
        layer(torch.ones(512, 2048, device=device)).sum().backward()
    rows = {r.category: r for r in ledger.rows() if r.place is Place.DEVICE}
    assert rows[Category.TOTAL].live_bytes == torch.cuda.memory_allocated(device)
    assert rows[Category.TOTAL].at_peak_bytes == torch.cuda.max_memory_allocated(device)
    assert rows[Category.GRADIENTS].live_bytes >= layer.weight.numel() * 4
