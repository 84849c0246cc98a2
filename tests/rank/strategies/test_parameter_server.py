"""The parameter server with two and three real ranks over gloo; each of its sides played alone: test_sides.py."""

import pytest

from tests.rank.real_ranks import LLAMA, Tiny, check_same_steps
from tests.tools.at_least_one import at_least_one
from tests.tools.rank_memory import apart, live_bytes, moved_bytes
from zerobench.common.vocabulary import Category, Phase, Status
from zerobench.config.derived.batch import micro_batches_per_step
from zerobench.config.derived.parameter_server import bytes_per_step
from zerobench.config.derived.roles import Role
from zerobench.rank.training.data import micro_batches

CONFIG = LLAMA | {"vocab_size": 509}
STEPS = {"warmup": 1, "timed": 2, "memory": 1}
NUM_STEPS = 6
TINY = Tiny(CONFIG, work={"strategy": "parameter-server", "gpus_per_node": 3, "steps": STEPS})
"""On three ranks each of two workers takes three of six micro-batches."""
spec, single = TINY.spec, TINY.alone
ON_TWO = {"gpus_per_node": 2, "gradient_accumulation_steps": 3}


@pytest.mark.parametrize(("optimizer", "ranks"), [("adamw", {}), ("sgd", ON_TWO)], ids=["adamw on 3", "sgd on 2"])
def test_a_server_that_waits_and_its_workers_take_the_steps_of_one_process(ran, optimizer, ranks):
    server = ran(spec(optimizer=optimizer, **ranks))[0]
    reference = ran(single(optimizer=optimizer))
    check_same_steps([server], reference)
    assert len(server.grad_norms) == NUM_STEPS
    assert server.grad_norms == pytest.approx(reference[0].grad_norms, rel=1e-5)  # of all workers' mean, not their sum


def test_the_first_rank_is_a_server_and_says_so(ran):
    server, *workers = ran(spec())
    assert (server.role, {worker.role for worker in workers}) == (Role.SERVER, {Role.WORKER})
    assert {rank.status for rank in (server, *workers)} == {Status.COMPLETED}
    assert server.flops_per_step is None
    assert workers[0].flops_per_step
    assert server.effective_config["parameter_server"]["role"] == "server"
    assert server.effective_config["optimizer"] == "AdamW"
    assert "optimizer" not in workers[0].effective_config


def test_the_server_holds_the_optimizer_states_and_the_workers_hold_the_activations(ran):
    server, *workers = ran(spec())
    weights = 4 * server.parameters.total
    for category in (Category.PARAMETERS, Category.FIRST_MOMENT, Category.SECOND_MOMENT):
        assert live_bytes(server, category, Phase.STEP) == weights, category
    assert live_bytes(server, Category.GRADIENTS, Phase.BACKWARD) == weights
    assert not [row for row in server.memory if row.category is Category.ACTIVATIONS]
    for worker in workers:
        assert live_bytes(worker, Category.PARAMETERS, Phase.STEP) == weights
        assert live_bytes(worker, Category.GRADIENTS, Phase.BACKWARD) == weights
        assert live_bytes(worker, Category.GRADIENTS, Phase.STEP) == 0
        assert live_bytes(worker, Category.FIRST_MOMENT, Phase.STEP) == 0
        assert live_bytes(worker, Category.ACTIVATIONS, Phase.FORWARD) > 0


def test_gradients_come_in_tensor_by_tensor_so_the_server_never_holds_a_second_copy(ran):
    server = ran(spec())[0]
    buffers = [row for row in server.memory if row.category is Category.REDUCE_BUFFERS]
    largest = 4 * CONFIG["vocab_size"] * CONFIG["hidden_size"]
    assert max(row.own_peak_bytes for row in buffers) == largest < 4 * server.parameters.total / 2


@pytest.mark.parametrize("consistency", ["sync", "async"])
def test_the_bytes_that_move_in_a_step_are_twice_the_weights_for_each_worker(ran, consistency):
    server, *workers = ran(spec(consistency=consistency))
    weights = 4 * server.parameters.total
    for worker in workers:
        assert (moved_bytes(worker, "send"), moved_bytes(worker, "recv")) == (weights, weights)
        assert 2 * weights == bytes_per_step(weights, 2, Role.WORKER)
    assert (moved_bytes(server, "send"), moved_bytes(server, "recv")) == (2 * weights, 2 * weights)
    assert server.effective_config["parameter_server"]["bytes_per_step_by_formula"] == 4 * weights


def test_a_server_that_waits_applies_no_stale_gradient_and_one_that_does_not_counts_how_stale_each_is(ran):
    waits, does_not = (ran(spec(consistency=one))[0] for one in ("sync", "async"))
    assert waits.staleness_steps == [0] * 2 * NUM_STEPS
    assert len(does_not.staleness_steps) == 2 * NUM_STEPS
    assert min(does_not.staleness_steps) == 0  # whatever comes first is fresh
    assert max(does_not.staleness_steps) >= 1  # with two workers at work another update lies between
    # All gradients of whoever ends first lie between those of the other, and some of the other's between its own.
    assert NUM_STEPS <= sum(does_not.staleness_steps) <= 2 * NUM_STEPS - 1


def test_gradients_that_are_applied_one_by_one_train_and_take_another_path(ran):
    reference, ours = (ran(asked)[0].losses for asked in (single(), spec(consistency="async")))
    assert ours[-1] < ours[0] - 0.01
    assert ours[0] == pytest.approx(reference[0], abs=5e-6)  # both workers begin with the first weights
    assert apart(ours, reference) > 5e-6


@pytest.mark.parametrize("consistency", ["sync", "async"])
def test_both_sides_tell_how_long_they_waited_within_each_timed_step(ran, consistency):
    for rank in at_least_one(ran(spec(consistency=consistency))):
        assert len(rank.step_times) == STEPS["timed"]
        assert [0 < time.wait_s <= time.step_s for time in rank.step_times] == [True] * STEPS["timed"], rank.role


def test_the_workers_together_see_the_samples_that_one_process_sees():
    trial = spec()
    assert [micro_batches_per_step(trial, rank) for rank in range(3)] == [0, 3, 3]
    dealt, alone = (
        [batch for rank in range(one.world_size) for batch in micro_batches(one, rank, 1, 509)]
        for one in (trial, single())
    )
    assert len(dealt) == len(alone) == 6
    assert sorted(row for batch in dealt for row in batch.tolist()) == sorted(
        row for batch in alone for row in batch.tolist()
    )
