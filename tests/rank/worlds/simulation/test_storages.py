"""What the simulation's count of storages says of memory that a processor's ranks map anew."""

import pytest
import torch

from zerobench.common.malloc import MAPPED_FROM_BYTES
from zerobench.estimate.time import trace
from zerobench.estimate.time.trace import PageMapping
from zerobench.rank.worlds.simulation.storages import SimulatedCounter
from zerobench.rank.worlds.simulation.tensors import SimulatedTensors

LARGE = MAPPED_FROM_BYTES // 4
"""Elements of fp32."""


@pytest.fixture
def mapped(monkeypatch):
    """Bytes that were told, while tensors of a CPU are simulated."""
    told: list[int] = []
    monkeypatch.setattr(
        trace, "_listener", lambda item: told.append(item.nbytes) if isinstance(item, PageMapping) else None
    )
    tensors = SimulatedTensors(lambda _flops: None)
    counter = SimulatedCounter(lambda: None, tensors)
    tensors.wrote = counter.wrote
    with tensors, counter:
        yield told


def test_a_large_result_is_mapped_as_it_is_written_and_once(mapped):
    whole = torch.ones(LARGE)
    assert mapped == [MAPPED_FROM_BYTES]
    whole.mul_(2)
    whole[10:].mul_(2)
    assert mapped == [MAPPED_FROM_BYTES]
    whole * 2  # another block
    assert mapped == [MAPPED_FROM_BYTES] * 2


def test_what_malloc_keeps_is_not_mapped_anew(mapped):
    torch.ones(LARGE - 1) * 2
    assert mapped == []


def test_of_a_bucket_only_the_pages_that_are_written_are_made_ready(mapped):
    bucket = torch.empty(4 * LARGE)
    assert mapped == []
    bucket[:100].copy_(torch.ones(100))
    bucket[100:300].copy_(torch.ones(200))
    bucket[:300].div_(2)
    assert mapped == [400, 800]
