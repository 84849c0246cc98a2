"""What the order of a step keeps of each operation's cost."""

from types import SimpleNamespace
from typing import Any

from zerobench.estimate.clock import trace
from zerobench.estimate.clock.trace import Host, HostCopy, Kernels, PageMapping, Recorder
from zerobench.rank.ledger.costs import Cost, Where
from zerobench.rank.ledger.order import Order


def test_attention_of_a_cpu_is_told_by_its_flops_and_all_else_by_what_it_moves(monkeypatch):
    monkeypatch.setattr(trace, "_listener", None)
    recorder = Recorder()
    traffic: Any = SimpleNamespace(issued=recorder, record_order=lambda *_: None)
    order = Order(traffic, lambda: 0, on_gpu=False)
    order.charge(Cost(Where.HOST, attention_flops=20))
    order.charge(Cost(Where.HOST, attention_flops=50, is_backward=True))
    order.charge(Cost(Where.HOST, moved_bytes=1000))
    step = recorder.trace()
    assert step is not None
    [item] = step.items
    assert isinstance(item, Kernels)
    work = step.works[item.work]
    assert (work.attention, work.moved_bytes, work.launches) == ((20, 50), 1000, 3)


def test_what_is_cast_goes_to_the_device_after_it_and_comes_from_it_before(monkeypatch):
    monkeypatch.setattr(trace, "_listener", None)
    recorder = Recorder()
    traffic: Any = SimpleNamespace(issued=recorder, record_order=lambda *_: None)
    order = Order(traffic, lambda: 0)
    cast = Cost(Where.UP, moved_bytes=2 << 20, blocks=True, cast_bytes=6 << 20, mapped_bytes=2 << 20)
    order.charge(cast)
    order.charge(cast._replace(where=Where.DOWN))
    order.charge(Cost(Where.UP, moved_bytes=5))
    on_host = [Host(6 << 20), PageMapping(2 << 20)]
    copies = [HostCopy(0, is_up, 2 << 20, True, is_paged=True) for is_up in (True, False)]
    step = recorder.trace()
    assert step is not None
    assert list(step.items) == [*on_host, *copies, *on_host, HostCopy(0, True, 5, False)]
