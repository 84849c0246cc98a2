"""What `rpc-pipeline` cannot be is refused before launch; who reads data, and what its stages move."""

from tests.config.machines import CPU, GPUS
from tests.config.rules.refusals import Asking
from zerobench.config.derived.batch import micro_batches_per_step, micro_batches_read
from zerobench.config.derived.pipeline_steps import pipeline_bytes_per_step
from zerobench.config.hardware.toolchain import torch_has_rpc

TWO_NODES = CPU.model_copy(update={"num_nodes": 2})
ASKING = Asking(strategy="rpc-pipeline", precision="fp32")
spec = ASKING.trial


test_two_cpu_ranks_of_one_node_can_run_it = ASKING.each_allowed({}, {"precision": "bf16", "optimizer": "sgd"})


test_what_it_cannot_do_is_refused_with_the_reason = ASKING.each_refused(
    (CPU.model_copy(update={"has_rpc": False}), {}, "rpc_not_in_torch", "use pipeline"),
    (GPUS, {}, "rpc_not_on_gpus", "CPU ranks"),
    (TWO_NODES, {"num_nodes": 2, "gpus_per_node": 1}, "rpc_on_one_node", "loopback"),
    (CPU, {"gpus_per_node": 16}, "blocks_not_divisible", "blocks cannot be divided among 16 stages"),
    (CPU, {"model": "gpt2-125m"}, "rpc_not_tied", "untied"),
    (CPU, {"gpus_per_node": 1}, "too_few_processes", "it needs 2 or more"),
    (CPU, {"offload_optimizer": "cpu"}, "offload_needs_engine", "rpc-pipeline"),
    (CPU, {"evidence": "solo"}, "strategy_not_in_this_world", "waits for the other stages"),
    (CPU, {"evidence": "simulated"}, "strategy_not_in_this_world", "waits for the other stages"),
    (CPU, {"evidence": "formula"}, "strategy_not_in_this_world", "no closed form"),
)


def test_the_installed_torch_has_rpc() -> None:
    assert torch_has_rpc()


def test_every_stage_works_on_the_whole_global_batch_and_only_the_driver_reads_it() -> None:
    trial = spec(gpus_per_node=3, gradient_accumulation_steps=2)
    assert [micro_batches_per_step(trial, rank) for rank in range(3)] == [6, 6, 6]
    assert [micro_batches_read(trial, rank) for rank in range(3)] == [6, 0, 0]


def test_tokens_and_losses_pass_between_the_driver_and_the_last_stage_beside_hidden_states() -> None:
    trial = spec(gpus_per_node=4, sequence_length=128, micro_batch_size=2)
    moved = [pipeline_bytes_per_step(trial, rank) for rank in range(4)]
    hidden = [pipeline_bytes_per_step(trial.model_copy(update={"strategy": "pipeline"}), rank) for rank in range(4)]
    tokens_and_losses = 4 * (2 * 128 * 8 + 2 * 4)
    assert [ours - theirs for ours, theirs in zip(moved, hidden, strict=True)] == [
        tokens_and_losses,
        0,
        0,
        tokens_and_losses,
    ]
