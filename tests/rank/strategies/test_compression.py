"""The 1-bit hook sends signs and a scale, and what it leaves out is added to the next gradient."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rank.conftest import InFork
from zerobench.rank.strategies.compression import OneBit, one_bit_hook, pack_signs, unpack_signs
from zerobench.rank.worlds import instant_group


class Bucket:
    """The part of DDP's bucket that a hook uses."""

    def __init__(self, gradient: torch.Tensor) -> None:
        self._gradient = gradient

    def buffer(self):
        return self._gradient

    def index(self):
        return 0

    def is_last(self):
        return True


def reduced(state: OneBit, gradient: torch.Tensor) -> torch.Tensor:
    """Result of the hook for a bucket; the gradient itself stays unchanged."""
    bucket: Any = Bucket(gradient.clone())
    return one_bit_hook(state, bucket).wait()


@pytest.fixture(scope="module", autouse=True)
def group():
    heard = []
    instant_group.join(0, 2, lambda *call: heard.append(call), "cpu")
    yield heard
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("numel", [1, 7, 8, 9, 1000])
def test_signs_come_back_from_an_eighth_of_the_bytes(numel):
    values = torch.randn(numel)
    packed = pack_signs(values)
    assert packed.numel() == -(-numel // 8)
    assert packed.dtype is torch.uint8
    assert torch.equal(unpack_signs(packed, values), torch.where(values >= 0, 1.0, -1.0))


def test_the_first_steps_are_reduced_uncompressed():
    state, gradient = OneBit(2), torch.tensor([1.0, -2.0, 3.0])
    for _ in range(2):
        out = reduced(state, gradient)
        assert torch.equal(out, gradient / 2)  # the absent rank's part is not in the sum of an instant group
    assert state.errors == {}


def test_what_was_left_out_is_kept_and_added_to_the_next_gradient():
    state, gradient = OneBit(0), torch.tensor([1.0, -2.0, 3.0])
    first = reduced(state, gradient)
    assert torch.equal(first, torch.tensor([2.0, -2.0, 2.0]))  # signs times their mean absolute value
    assert torch.equal(state.errors[0], gradient - first)
    second = reduced(state, torch.zeros(3))
    assert torch.allclose(second + state.errors[0], gradient - first)


def test_over_many_steps_the_mean_of_what_is_applied_is_the_gradient():
    state, gradient = OneBit(0), torch.randn(64, generator=torch.Generator().manual_seed(0))
    applied = torch.stack([reduced(state, gradient) for _ in range(400)]).mean(0)
    assert torch.allclose(applied, gradient - state.errors[0] / 400, atol=1e-4)  # nothing is lost
    assert torch.allclose(applied, gradient, atol=0.3)


def test_a_compressed_bucket_moves_a_bit_an_element_from_each_rank(group):
    group.clear()
    reduced(OneBit(0), torch.randn(800))
    assert [(kind, nbytes) for kind, _, nbytes, _ in group] == [("all_gather", 2 * 100), ("all_gather", 2 * 4)]


GRADIENTS = ([1.0, -2.0, 3.0], [-10.0, -20.0, 60.0])
"""Of two ranks: their mean absolute values are 2 and 30."""


def reduced_by_real_ranks(store: str, rank: int) -> tuple[list[float], list[float]]:
    """Result of the hook on one of two ranks, and its error for the next step; in a process of its own."""
    torch.distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=len(GRADIENTS))
    state = OneBit(0)
    out = reduced(state, torch.tensor(GRADIENTS[rank]))
    torch.distributed.destroy_process_group()
    return out.tolist(), state.errors[0].tolist()


def test_each_ranks_signs_are_scaled_by_its_own_mean_and_the_error_is_its_own(in_fork: InFork, tmp_path: Path):
    with ThreadPoolExecutor() as threads:
        asks = [threads.submit(in_fork, reduced_by_real_ranks, str(tmp_path / "store"), rank) for rank in (0, 1)]
        found = [ask.result() for ask in asks]
    mean = [(2 - 30) / 2, (-2 - 30) / 2, (2 + 30) / 2]
    assert found == [(mean, [-1.0, 0.0, 1.0]), (mean, [20.0, 10.0, 30.0])]
