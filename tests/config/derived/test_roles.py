"""Which ranks serve, how the others share a step's micro-batches, and what cannot be shared or waited for."""

from typing import Any

import pytest

from tests.config.machines import CPU
from tests.config.rules.refusals import Asking
from zerobench.config.derived.batch import micro_batches_per_step
from zerobench.config.derived.host_memory import PROCESS_BYTES, host_state_bytes
from zerobench.config.derived.machine import Accelerator
from zerobench.config.derived.roles import Role, num_loss_ranks, num_servers, num_workers, role_of
from zerobench.config.derived.strategy import is_exact
from zerobench.config.sweep.expand import expand
from zerobench.config.sweep.sweep import load_sweep

ASKING = Asking(strategy="parameter-server")
spec, skip = ASKING.trial, ASKING.skip


@pytest.mark.parametrize(("ranks", "accumulation"), [(2, 1), (2, 3), (3, 2), (3, 4), (4, 3), (5, 8)])
def test_workers_together_take_the_global_batch_of_the_point(ranks: int, accumulation: int) -> None:
    trial = spec(gpus_per_node=ranks, gradient_accumulation_steps=accumulation, micro_batch_size=2)
    taken = sum(micro_batches_per_step(trial, rank) for rank in range(ranks))
    assert skip(gpus_per_node=ranks, gradient_accumulation_steps=accumulation) is None
    assert taken * trial.micro_batch_size == trial.global_batch_size
    assert [role_of(trial, rank) for rank in range(ranks)] == [Role.SERVER] + [Role.WORKER] * num_workers(trial)


def test_without_a_server_each_rank_takes_its_own() -> None:
    trial = spec(strategy="zero1", gpus_per_node=4, gradient_accumulation_steps=3)
    assert [(role_of(trial, rank), micro_batches_per_step(trial, rank)) for rank in range(4)] == [(Role.WORKER, 3)] * 4


test_what_a_server_cannot_do_is_refused_before_launch_with_the_reason = ASKING.each_refused(
    ({"gpus_per_node": 1}, "too_few_processes", "it needs 2 or more"),
    ({"gpus_per_node": 3}, "workers_cannot_share_batch", "2 workers cannot evenly share a step's 3 micro-batches"),
    (
        {"gpus_per_node": 4, "gradient_accumulation_steps": 2},
        "workers_cannot_share_batch",
        "set gradient_accumulation_steps to a multiple of 3",
    ),
    ({"gpus_per_node": 2, "offload_optimizer": "cpu"}, "offload_needs_engine", "parameter-server"),
    ({"gpus_per_node": 2, "compression": "onebit"}, "compression_needs_ddp", "parameter-server"),
    ({"gpus_per_node": 2, "evidence": "formula"}, "strategy_not_in_this_world", "use simulated"),
)


def test_only_the_server_is_taken_to_hold_optimizer_states_in_host_memory() -> None:
    counts = 1_000_000
    trial = spec(gpus_per_node=3, gradient_accumulation_steps=2, precision="fp32")
    states = host_state_bytes(trial, counts, Accelerator.CPU) - 3 * PROCESS_BYTES
    assert states == pytest.approx(counts * (3 * (4 + 4) + 8))


def test_only_a_server_lets_workers_run_ahead_of_each_other() -> None:
    ASKING.refused("consistency_needs_server", "zero1", strategy="zero1", consistency="async")
    assert skip(gpus_per_node=2, consistency="async") is None


def test_gradients_on_stale_weights_are_not_held_to_the_reference() -> None:
    assert is_exact(spec(gpus_per_node=2))
    assert not is_exact(spec(gpus_per_node=2, consistency="async"))


def test_one_reference_stands_for_both_ways_to_be_consistent(tmp_path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "name: s\naxes: {model: llama-10m, strategy: [single, parameter-server], consistency: [sync, async],"
        " world_size: 2, precision: fp32}\n"
    )
    planned = expand(load_sweep(str(file)), CPU)
    found = [(one.trial.strategy, one.trial.consistency.value, one.skipped) for one in planned]
    assert found == [("single", "sync", None), ("parameter-server", "sync", None), ("parameter-server", "async", None)]
    assert len({one.trial.parity_hash for one in planned}) == 1


@pytest.mark.parametrize(
    ("fields", "servers", "with_loss"),
    [
        ({"gpus_per_node": 3}, 1, 2),
        ({"strategy": "tensorflow", "tf_strategy": "parameter-server", "gpus_per_node": 3}, 1, 2),
        ({"strategy": "tensorflow", "gpus_per_node": 3}, 0, 3),
        ({"strategy": "pipeline", "gpus_per_node": 3}, 0, 1),
        ({"strategy": "tensor", "gpus_per_node": 3}, 0, 3),
    ],
)
def test_of_a_trials_ranks_some_serve_and_some_have_a_loss(
    fields: dict[str, Any], servers: int, with_loss: int
) -> None:
    assert (num_servers(spec(**fields)), num_loss_ranks(spec(**fields))) == (servers, with_loss)
    of_a_script = spec(**fields).model_copy(update={"strategy": "train.py"})
    assert (num_servers(of_a_script), num_loss_ranks(of_a_script)) == (0, 3)
