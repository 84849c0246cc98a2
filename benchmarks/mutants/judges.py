"""The tests that judge mutants where those that mirror the module take minutes (of them, the ones that take seconds)
or import it only in a process that they start.
"""

from __future__ import annotations

_MARKED = "tests/worker/test_grad_norms.py::test_gradients_twice_too_large_are_marked"
_HEARD = (
    "tests/worker/test_communication.py::test_real_ranks_are_heard_to_move_what_a_rank_alone_hands_to_its_collectives"
)
_STAGES = tuple(
    f"tests/worker/test_pipeline.py::{name}"
    for name in (
        "test_stages_lose_what_one_process_loses_to_5e_6[adamw-1f1b]",
        "test_every_byte_at_every_peak_of_every_stage_has_a_name[1f1b]",
        "test_each_rank_holds_its_stage_and_nothing_of_the_others_to_the_byte",
        "test_what_passes_between_two_stages_is_the_hidden_states_and_their_gradients",
        "test_every_rank_tells_how_long_it_waited_within_each_timed_step[1f1b]",
        "test_a_stage_played_alone_holds_what_it_holds_among_others_to_the_byte[solo-0]",
    )
)
_SERVER = ("tests/worker/test_parameter_server.py",)
_DRIVEN = ("tests/worker/test_rpc_pipeline.py",)
_LOOP = ("tests/worker/test_torch_loop.py",)
_ENGINE = (f"{_MARKED}[zero2]", f"{_MARKED}[zero0 fp16]", f"{_MARKED}[zero3]")
_IN_ENGINE = (f"{_MARKED}[pipeline deepspeed]", f"{_MARKED}[pipeline bf16 deepspeed]")

JUDGES: dict[str, tuple[str, ...]] = {
    "memory/host.py": ("tests/memory/test_host.py", "tests/memory/test_storages.py"),
    "memory/nvml_driver.py": ("tests/memory/test_device_track.py", "tests/memory/test_nvml.py"),
    "memory/topology.py": ("tests/memory/test_topology.py",),
    "worker/strategies/__init__.py": (f"{_MARKED}[ddp]",),
    "worker/strategies/base.py": (*_LOOP, "tests/worker/test_stages.py"),
    "worker/strategies/checkpoint_states.py": _LOOP,
    "worker/strategies/ddp.py": (f"{_MARKED}[ddp]", f"{_HEARD}[ddp]", f"{_MARKED}[ddp fp16 sgd]"),
    "worker/strategies/deepspeed_pipeline.py": _IN_ENGINE,
    "worker/strategies/engine_norm.py": (*_ENGINE, *_IN_ENGINE),
    "worker/strategies/fsdp.py": (f"{_MARKED}[fsdp]", f"{_HEARD}[fsdp]", f"{_MARKED}[fsdp 2 4]"),
    "worker/strategies/one_bit.py": ("tests/worker/test_one_bit.py",),
    "worker/strategies/parameter_server.py": _SERVER,
    "worker/strategies/phased_stage.py": _STAGES,
    "worker/strategies/pipeline.py": _STAGES,
    "worker/strategies/rpc_optimizer.py": _SERVER,
    "worker/strategies/rpc_pipeline.py": _DRIVEN,
    "worker/strategies/rpc_stage.py": _DRIVEN,
    "worker/strategies/server_link.py": _SERVER,
    "worker/strategies/single.py": _LOOP,
    "worker/strategies/stages.py": ("tests/worker/test_stages.py",),
    "worker/strategies/tensor.py": (f"{_MARKED}[tensor]", f"{_HEARD}[tensor]"),
    "worker/strategies/torch_loop.py": _LOOP,
    "worker/strategies/zero.py": _ENGINE,
}
"""By module, from `zerobench/`: files of tests, or one test of a file."""
