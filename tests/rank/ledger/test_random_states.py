"""Of the states of the CPU's generator those that checkpointing keeps are told, whichever way it works."""

import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from zerobench.rank.ledger.random_states import told_of_random_states


@pytest.mark.parametrize("reentrant", [True, False])
def test_the_state_that_checkpointing_keeps_is_told_and_no_other(reentrant: bool) -> None:
    told: list[torch.Tensor] = []
    original = torch.get_rng_state
    with told_of_random_states(told.append):
        for _ in range(3):
            torch.get_rng_state()
        checkpoint(torch.tanh, torch.ones(2, requires_grad=True), use_reentrant=reentrant)
    assert [torch.equal(state, original()) for state in told] == [True]
    assert torch.get_rng_state is original


class Listener:
    """Who is told."""

    def __call__(self, state: torch.Tensor) -> None:
        raise AssertionError(state)


def test_a_function_that_a_module_took_meanwhile_tells_nobody_and_keeps_nobody_alive() -> None:
    listener = Listener()
    reference = weakref.ref(listener)
    with told_of_random_states(listener):
        taken = torch.get_rng_state
    del listener
    assert reference() is None
    assert torch.equal(taken(), torch.get_rng_state())
