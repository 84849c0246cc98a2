"""The counter of storages counts every byte once, whatever it is for."""

from __future__ import annotations

import gc

import torch

from zerobench.memory.host import malloc_bytes
from zerobench.memory.storages import StorageCounter

MEGABYTE = 1_000_000


def test_a_birth_and_a_death_are_counted_with_their_bytes():
    counter = StorageCounter()
    with counter:
        tensor = torch.zeros(250_000)
        assert counter.totals["cpu"] == MEGABYTE
        del tensor
    assert counter.totals["cpu"] == 0
    assert [delta for _, delta in counter.events] == [MEGABYTE, -MEGABYTE]


def test_views_and_in_place_operations_are_not_new_storages():
    counter = StorageCounter()
    with counter:
        tensor = torch.zeros(1000)
        view = tensor.view(10, 100)[3:]
        view.add_(1)
        tensor.detach()
    assert counter.totals["cpu"] == 4000
    assert len(counter.live) == 1


def test_a_storage_that_is_resized_is_counted_with_its_new_size():
    counter = StorageCounter()
    with counter:
        tensor = torch.zeros(1000)
        tensor.resize_(3000)
        assert counter.totals["cpu"] == 12_000


def test_a_death_is_seen_while_the_counter_is_off():
    counter = StorageCounter()
    with counter:
        tensor = torch.zeros(1000)
    del tensor
    assert counter.totals["cpu"] == 0


def test_storages_born_while_off_are_found_again_with_their_gradients():
    counter = StorageCounter()
    parameter = torch.nn.Parameter(torch.ones(1000))
    parameter.sum().backward()
    gc.collect()
    counter.adopt_reachable()
    assert counter.find(parameter) is not None
    assert parameter.grad is not None
    assert counter.find(parameter.grad) is not None


def test_the_backward_pass_is_counted():
    counter = StorageCounter()
    parameter = torch.nn.Parameter(torch.ones(1000, 1000))
    with counter:
        (parameter * 2).sum().backward()
        assert parameter.grad is not None
        assert counter.find(parameter.grad) is not None


def test_the_count_agrees_with_what_malloc_handed_out():
    counter = StorageCounter()
    before = malloc_bytes()
    assert before is not None
    with counter:
        tensors = [torch.zeros(5 * MEGABYTE) for _ in range(5)]
        after = malloc_bytes()
    assert after is not None
    assert abs((after - before) - counter.totals["cpu"]) < 0.01 * counter.totals["cpu"]
    assert len(tensors) == 5
