"""A name is evidence: identity before use before birth; a view into a bucket leaves the bucket its name."""

import weakref

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.tools.at_least_one import at_least_one
from tests.tools.known import known
from zerobench.common.vocabulary import Category, Phase, Place
from zerobench.rank.ledger.engine_tensors import NamedTensor
from zerobench.rank.ledger.naming import Names, watch_random_states
from zerobench.rank.ledger.sites import Origin, Site
from zerobench.rank.ledger.storages import Storage, StorageCounter


@pytest.mark.parametrize("reentrant", [True, False])
def test_the_state_that_checkpointing_keeps_is_told_and_no_other(reentrant: bool) -> None:
    told: list[torch.Tensor] = []
    original = torch.get_rng_state
    with watch_random_states(told.append):
        for _ in range(3):
            torch.get_rng_state()
        checkpoint(torch.tanh, torch.ones(2, requires_grad=True), use_reentrant=reentrant)
    assert [torch.equal(state, original()) for state in told] == [True]
    assert torch.get_rng_state is original


class Listener:
    """Receiver of the states."""

    def __call__(self, state: torch.Tensor) -> None:
        raise AssertionError(state)


def test_a_function_that_a_module_took_meanwhile_tells_nobody_and_keeps_nobody_alive() -> None:
    listener = Listener()
    reference = weakref.ref(listener)
    with watch_random_states(listener):
        taken = torch.get_rng_state
    del listener
    assert reference() is None
    assert torch.equal(taken(), torch.get_rng_state())


STAGE_2 = "deepspeed/runtime/zero/stage_1_and_2.py:setup_buckets"
FSDP = "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:foreach_reduce"


class Watched:
    """A counter whose births are what the test says, and the names over it."""

    def __init__(self, *, proves: Category | Origin | None = None, name: str = "here", on_host: bool = False) -> None:
        self.site = Site(name, proves, on_host=on_host)
        self.counter = StorageCounter(lambda: self.site)
        self.names = Names(self.counter)

    def born(self, numel: int = 8) -> torch.Tensor:
        with self.counter:
            return torch.ones(numel)

    def storage(self, tensor: torch.Tensor) -> Storage:
        return known(self.counter.find(tensor))

    def category(self, tensor: torch.Tensor, phase: Phase = Phase.FORWARD) -> Category | None:
        return self.names.verdict(self.storage(tensor), phase)[1]


@pytest.mark.parametrize(
    ("born_in", "view", "expected"),
    [
        (STAGE_2, Category.GRADIENTS, Category.REDUCE_BUFFERS),
        (STAGE_2, Category.PARAMETERS, Category.PARAMETERS),
        (FSDP, Category.GRADIENTS, Category.GRADIENTS),
    ],
)
def test_a_view_renames_what_was_born_as_a_bucket_unless_it_is_a_gradient_in_a_stages_own(born_in, view, expected):
    watched = Watched(proves=Category.REDUCE_BUFFERS, name=born_in)
    bucket = watched.born()
    watched.names.identify([NamedTensor(bucket[2:4], view)])
    assert watched.category(bucket) is expected


def test_who_is_identified_before_it_was_ever_seen_is_counted_then():
    watched, unseen = Watched(), torch.ones(8)
    watched.names.identify([NamedTensor(unseen, Category.MASTER_WEIGHTS)])
    assert watched.category(unseen) is Category.MASTER_WEIGHTS
    assert watched.counter.totals["cpu"] == 32


def test_who_is_identified_lies_where_it_was_said_to_and_else_where_its_device_is():
    watched = Watched()
    for said, place in ((Place.HOST, Place.HOST), (Place.DEVICE, Place.DEVICE), (None, Place.HOST)):
        tensor = watched.born()
        watched.names.identify([NamedTensor(tensor, Category.MASTER_WEIGHTS, said)])
        storage = watched.storage(tensor)
        assert watched.names.verdict(storage, Phase.STEP) == (place, Category.MASTER_WEIGHTS)
        assert watched.names.is_placed(storage) is (said is not None)


def test_a_birth_on_the_host_is_evidence_of_the_place():
    for on_host in (True, False):
        watched = Watched(proves=Category.STAGING, on_host=on_host)
        assert watched.names.is_placed(watched.storage(watched.born())) is on_host


def test_what_the_forward_pass_made_and_autograd_saved_was_an_activation_also_once_it_is_dead():
    watched = Watched(proves=Origin.FORWARD)
    saved, dropped = watched.born(), watched.born()
    storages = [watched.storage(saved), watched.storage(dropped)]
    watched.names.saved(saved)
    del saved, dropped
    found = [watched.names.verdict(storage, Phase.BACKWARD)[1] for storage in storages]
    assert found == [Category.ACTIVATIONS, Category.TEMPORARIES]


def test_a_temporary_that_lives_at_the_end_of_a_phase_has_no_name():
    for origin in (Origin.BUILD, Origin.AUTOGRAD, Category.TEMPORARIES):
        watched = Watched(proves=origin)
        tensor = watched.born()
        storage = watched.storage(tensor)
        assert watched.category(tensor) is None
        del tensor
        assert watched.names.verdict(storage, Phase.FORWARD)[1] is Category.TEMPORARIES


@pytest.mark.parametrize(
    ("proves", "kept"), [(Origin.FORWARD, Category.ACTIVATIONS), (Category.INPUTS, Category.INPUTS)]
)
def test_an_activation_and_a_batch_that_a_strategy_makes_live_through_the_passes_of_one_step(proves, kept):
    watched = Watched(proves=proves)
    tensor = watched.born()
    found = {phase: watched.category(tensor, phase) for phase in Phase}
    assert found == {Phase.INIT: None, Phase.FORWARD: kept, Phase.BACKWARD: kept, Phase.STEP: None}
    watched.names.end_of(Phase.STEP)
    assert watched.category(tensor, Phase.FORWARD) is None


def test_what_a_category_was_proven_for_outlives_any_phase():
    watched = Watched(proves=Category.GRADIENTS)
    tensor = watched.born()
    for phase in Phase:
        watched.names.end_of(phase)
        assert watched.category(tensor, phase) is Category.GRADIENTS


def test_gradients_between_logits_and_loss_belong_to_the_loss_of_each_micro_batch():
    watched = Watched()
    weight = torch.ones(4, 4, requires_grad=True)
    hidden = [torch.ones(2, 4) @ weight for _ in range(2)]
    logits = [state * 1.0 for state in hidden]
    losses = [functional.cross_entropy(one, torch.zeros(2, dtype=torch.long)) for one in logits]
    for loss, one in zip(losses, logits, strict=True):
        watched.names.mark_loss_graph(loss, known(one.grad_fn)._sequence_nr())
    for loss, one, state in at_least_one(zip(losses, logits, hidden, strict=True)):
        for end, expected in ((loss, Category.LOGITS_AND_LOSS), (one, None), (state, None)):
            node = known(end.grad_fn)
            watched.site = Site("autograd", Origin.AUTOGRAD, node._sequence_nr())
            tensor = watched.born()
            assert watched.category(tensor, Phase.BACKWARD) is expected
            del tensor


def test_a_loss_beside_the_logits_is_followed_no_further_than_what_was_made_before_them():
    watched = Watched()
    weight = torch.ones(4, 4, requires_grad=True)
    hidden = torch.ones(2, 4) @ weight
    logits = hidden * 1.0
    loss = functional.cross_entropy(logits, torch.zeros(2, dtype=torch.long)) + hidden.square().mean()
    watched.names.mark_loss_graph(loss, known(logits.grad_fn)._sequence_nr())
    for node, expected in ((loss.grad_fn, Category.LOGITS_AND_LOSS), (hidden.grad_fn, None), (logits.grad_fn, None)):
        watched.site = Site("autograd", Origin.AUTOGRAD, known(node)._sequence_nr())
        assert watched.category(watched.born(), Phase.BACKWARD) is expected


def test_what_autograd_saves_is_freed_with_its_graph_also_where_no_backward_pass_comes():
    watched = Watched()
    leaf = torch.ones(8, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(watched.names.saved, lambda tensor: tensor):
        result = leaf.exp()  # autograd saves the result itself
    storage = weakref.ref(result.untyped_storage())
    assert storage() is not None
    del result
    assert storage() is None


def test_autograd_keeps_the_very_object_of_a_leaf():
    leaf = torch.ones(8)
    assert Watched().names.saved(leaf) is leaf


def test_logits_that_live_on_after_the_step_lose_their_name_and_parameters_do_not():
    watched = Watched()
    logits, weights = watched.born(), watched.born()
    watched.names.identify([NamedTensor(logits, Category.LOGITS_AND_LOSS), NamedTensor(weights, Category.PARAMETERS)])
    watched.names.end_of(Phase.STEP)
    assert [watched.category(tensor) for tensor in (logits, weights)] == [None, Category.PARAMETERS]
