"""The counter of storages counts every byte once, whatever it is for."""

import gc

import torch
from torch._C._dynamo import eval_frame
from torch._dynamo.types import ConvertFrameReturn

from tests.tools.known import known
from zerobench.rank.ledger.heard_collectives import HearingCounter
from zerobench.rank.ledger.host import malloc_bytes
from zerobench.rank.ledger.storages import StorageCounter

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
    assert counter.find(known(parameter.grad)) is not None


def test_the_backward_pass_is_counted():
    counter = StorageCounter()
    parameter = torch.nn.Parameter(torch.ones(1000, 1000))
    with counter:
        (parameter * 2).sum().backward()
        assert counter.find(known(parameter.grad)) is not None


def test_the_count_agrees_with_what_malloc_handed_out():
    counter = StorageCounter()
    before = known(malloc_bytes())
    with counter:
        tensors = [torch.zeros(5 * MEGABYTE) for _ in range(5)]
        after = malloc_bytes()
    assert after is not None
    assert abs((after - before) - counter.totals["cpu"]) < 0.01 * counter.totals["cpu"]
    assert len(tensors) == 5


def test_a_storage_resized_in_place_dies_and_is_born_again_where_it_was_first_born():
    places = iter(["here", "where it was resized", "where it was resized again"])
    counter = StorageCounter(lambda: next(places))
    with counter:
        tensor = torch.empty(100)
        tensor.untyped_storage().resize_(0)
        assert counter.totals["cpu"] == 0
        tensor.untyped_storage().resize_(400)
        assert counter.totals["cpu"] == 400
        found = known(counter.find(tensor))
        assert found.birth == "here"
        assert [delta for _, delta in counter.events] == [400, -400, 400]
    del tensor
    assert counter.totals["cpu"] == 0


def test_after_counting_torch_resizes_as_before():
    before = torch.UntypedStorage.resize_
    with StorageCounter():
        assert torch.UntypedStorage.resize_ is not before
    assert torch.UntypedStorage.resize_ is before


def test_a_tensor_that_wraps_others_is_counted_as_what_is_inside():
    from torch.testing._internal.two_tensor import TwoTensor

    counter = StorageCounter()
    with counter:
        wrapped = TwoTensor(torch.ones(10), torch.ones(10))
        doubled = wrapped * 2
    assert counter.totals["cpu"] == 4 * 10 * 4
    assert counter.find(doubled) is counter.find(doubled.a)  # type: ignore[attr-defined]


def test_fake_tensors_are_no_memory():
    from torch._subclasses.fake_tensor import FakeTensorMode

    counter = StorageCounter()
    with counter, FakeTensorMode():
        kept = torch.empty(1000)
        counter.see(kept)
    assert counter.totals.get("cpu", 0) == 0


def test_a_tensor_that_no_operation_makes_is_counted():
    import numpy as np

    makers = ("frombuffer", "from_dlpack")
    counter = StorageCounter()
    originals = [getattr(torch, name) for name in makers]
    with counter:
        from_buffer, from_dlpack = (getattr(torch, name) for name in makers)
        tensors = [from_buffer(bytearray(400), dtype=torch.float32), from_dlpack(np.zeros(50))]
        assert counter.totals["cpu"] == 800
    assert len(tensors) == 2
    assert [getattr(torch, name) for name in makers] == originals


class Listening(HearingCounter):
    """A counter with two classes below it."""

    def _listener(self, func):
        return super()._listener(func) or (lambda *_: None)


def test_torchs_compiler_neither_looks_into_the_counter_nor_is_turned_off_and_on_around_each_operation():
    looked_at = []

    def looks_at(frame, _cache, _state):
        looked_at.append((frame.f_code.co_filename, frame.f_code.co_name))
        return ConvertFrameReturn()

    def make():
        return torch.ones(3)

    counter = Listening(lambda: None, lambda *_: None, 1)
    with counter:
        before = eval_frame.set_eval_frame(looks_at)
        try:
            kept = make()
        finally:
            eval_frame.set_eval_frame(before)
    assert counter.find(kept) is not None
    names = [name for _, name in looked_at]
    assert "make" in names
    assert {"__torch_dispatch__", "_listener", "see"}.isdisjoint(names)
    assert not hasattr(Listening.__torch_dispatch__, "__wrapped__")
