"""The tests that judge mutants where those that mirror the module take minutes (of them, the ones that take seconds),
import it only in a process that they start, or lie nearer by imports than those that hold each of its terms.
"""

from __future__ import annotations

_ALONE = (
    "tests/worker/test_one_rank.py"
    "::test_a_strategy_alone_takes_the_plain_steps_holds_what_it_names_and_goes_on_from_its_file"
)
_MARKED = "tests/worker/test_grad_norms.py::test_gradients_twice_too_large_are_marked"
_DRIVEN = ("tests/worker/test_rpc_pipeline.py",)
_LOOP = ("tests/worker/test_torch_loop.py",)
_SAMPLER = ("tests/memory/test_sampler_process.py", "tests/memory/test_sampler_record.py")


def _alone(*ways: str) -> tuple[str, ...]:
    return tuple(f"{_ALONE}[{way}]" for way in ways)


_PART = "tests/worker/test_one_of_many.py::test_one_of_many_moves_and_holds_what_its_strategy_says_to_the_byte"


def _part(*parts: str) -> tuple[str, ...]:
    return tuple(f"{_PART}[{part}]" for part in parts)


_STAGES = _part(
    "pipeline 0 of 2 gradient_accumulation_steps",
    "pipeline 1 of 2 gradient_accumulation_steps",
    "pipeline 1 of 2 gradient_accumulation_steps tied",
)
_SERVER = _part("parameter-server 0 of 3 ", "parameter-server 0 of 3 consistency", "parameter-server 2 of 3 ")
_DDP = _alone("ddp", "ddp fp16_0", "ddp onebit", "ddp powersgd 1048576")
_PLAIN = _alone("ddp", "fsdp", "tensor", "pipeline", "pipeline gpipe fp16", "pipeline deepspeed", "zero0")
_UNCLIPPED = (
    "tests/worker/test_one_rank.py"
    "::test_without_clipping_norms_are_told_by_whom_they_cost_nothing_and_else_in_warm_up_steps"
)
_SCALED = "tests/worker/test_one_rank.py::test_gradients_are_scaled_down_to_the_largest_norm_and_never_up"
_TORCH = _alone("pipeline", "pipeline gpipe fp16")
_IN_ENGINE = _alone("pipeline deepspeed", "pipeline deepspeed bf16")
_ENGINE = _alone("zero0", "zero0 bf16 fused_adamw", "zero0 fp16", "zero2", "zero3")

_PHYSICS = tuple(
    f"tests/timing/test_physics.py::test_{name}"
    for name in (
        "more_stages_never_raise_the_efficiency",
        "more_ranks_never_make_the_passes_shorter",
        "gradients_are_reduced_once_a_step_or_in_each_micro_batch",
        "a_faster_link_is_never_slower",
        "more_work_is_never_faster_where_parameters_come_from_drives",
        "checkpointing_saves_nothing_but_calls_that_deepspeed_makes_for_more_parameters_at_once",
        "a_larger_micro_batch_uses_the_gpu_better",
        "offload_and_other_chips_make_the_interval_wider_and_are_named",
        "blocks_that_are_compiled_or_fused_move_less_than_transformers_own",
        "more_ranks_never_raise_the_efficiency_of_cut_matrices",
        "cut_matrices_keep_to_the_bound_their_links_and_checkpointing",
        "no_time_is_given_for_work_that_the_model_does_not_know_and_it_says_why",
    )
)
_TIMED = (
    *(
        f"tests/timing/test_{name}.py"
        for name in ("kernels", "roofline", "replay", "trace", "pipeline", "transformers_blocks")
    ),
    "tests/report/step_time/test_tuned.py",
    *_PHYSICS,
)
_STEP = (
    *(f"tests/report/step_time/test_{name}.py" for name in ("engines", "larger", "bound")),
    "tests/report/exporters/test_step_timeline.py",
    *_TIMED,
)
_RULES = ("tests/sweeping/test_strategy_rules.py", "tests/sweeping/test_rules.py")
_INSTANTS = tuple(f"tests/formulas/test_{name}.py" for name in ("deepspeed_instants", "departures", "deepspeed"))

JUDGES: dict[str, tuple[str, ...]] = {
    "ds_config/facts.py": tuple(f"tests/ds_config/test_{name}.py" for name in ("obedience", "conditions", "user_file")),
    "ds_config/reading.py": ("tests/ds_config/test_reading.py", "tests/spec/test_optimizers.py"),
    "formulas/allocator.py": ("tests/formulas/test_allocator.py",),
    "formulas/deepspeed/stage_3.py": _INSTANTS,
    "formulas/deepspeed/stage_3_offload.py": _INSTANTS,
    "formulas/deepspeed/swapped.py": _INSTANTS,
    "formulas/deepspeed/swapping.py": _INSTANTS,
    "memory/cuda.py": ("tests/memory/test_cuda.py", "tests/memory/test_cuda_ledger.py"),
    "memory/device.py": ("tests/memory/test_device.py",),
    "memory/engine_config.py": ("tests/memory/test_engine_config.py", *_alone("zero2")),
    "memory/engine_tensors.py": ("tests/memory/test_engine_walks.py", "tests/memory/test_engine_tensors.py"),
    "memory/expandable_segments.py": ("tests/memory/test_expandable_segments.py",),
    "memory/held.py": ("tests/memory/test_held.py", "tests/memory/test_device.py"),
    "memory/host.py": ("tests/memory/test_host.py", "tests/memory/test_storages.py"),
    "memory/ledger.py": (
        "tests/memory/test_ledger_process.py",
        "tests/memory/test_ledger.py::test_states_are_counted_to_the_byte",
    ),
    "memory/model_sites.py": ("tests/memory/test_model_sites.py",),
    "memory/nvml_driver.py": ("tests/memory/test_device_track.py", "tests/memory/test_nvml.py"),
    "memory/recorder.py": ("tests/memory/test_recorder.py", "tests/memory/test_failures.py"),
    "memory/sampler.py": _SAMPLER,
    "memory/sampler_process.py": _SAMPLER,
    "memory/sites.py": ("tests/memory/test_sites.py",),
    "memory/storages.py": ("tests/memory/test_storages.py", "tests/memory/test_cpu_book.py"),
    "memory/topology.py": ("tests/memory/test_topology.py",),
    "report/step_time/engines.py": _STEP,
    "report/step_time/expected.py": ("tests/report/test_calibrate.py", *_STEP),
    "report/step_time/larger.py": _STEP,
    "report/step_time/replayed.py": _STEP,
    "report/step_time/stages.py": _STEP,
    "report/step_time/terms.py": _STEP,
    "report/step_time/transfers.py": _STEP,
    "spec/availability.py": ("tests/sweeping/test_strategy_rules.py",),
    "spec/cluster.py": ("tests/sweeping/test_plan.py", "tests/spec/test_training.py", "tests/spec/test_varied.py"),
    "spec/host_memory.py": ("tests/sweeping/test_rules.py", "tests/spec/test_pipeline.py", "tests/spec/test_roles.py"),
    "spec/tensors.py": (
        *(f"tests/spec/test_{name}.py" for name in ("tensors", "presets", "parameters")),
        "tests/formulas/test_torch_strategies.py",
    ),
    "spec/toolchain.py": ("tests/running/test_this_machine.py",),
    "spec/trial.py": ("tests/spec/test_trial.py", "tests/sweeping/test_axes.py", "tests/sweeping/test_speed_rules.py"),
    "spec/usual_node.py": ("tests/sweeping/test_plan.py",),
    "spec/sharding.py": ("tests/sweeping/test_zeropp_rules.py", "tests/formulas/test_deepspeed.py"),
    "spec/links.py": ("tests/spec/test_links.py", "tests/report/step_time/test_links.py"),
    "sweeping/axis_words.py": ("tests/sweeping/test_axis_words.py", "tests/sweeping/test_axes.py"),
    "sweeping/overlay.py": ("tests/sweeping/test_sweep.py",),
    "sweeping/paths.py": ("tests/sweeping/test_paths.py", "tests/sweeping/test_sweep.py"),
    "sweeping/rules.py": (*_RULES, "tests/sweeping/test_optimizer_rules.py", "tests/sweeping/test_evidence_axes.py"),
    "sweeping/adapter_rules.py": ("tests/spec/test_adapter.py", *_RULES),
    "sweeping/checkpoint_rules.py": ("tests/spec/test_checkpoint.py", *_RULES),
    "sweeping/pipeline_rules.py": ("tests/spec/test_pipeline.py", *_RULES),
    "sweeping/ramp_rules.py": ("tests/spec/test_batch_ramp.py", *_RULES),
    "timing/device.py": _TIMED,
    "timing/host.py": _TIMED,
    "timing/kernels.py": _TIMED,
    "timing/latency.py": _TIMED,
    "timing/passes.py": _TIMED,
    "timing/pipeline.py": _TIMED,
    "timing/rates.py": _TIMED,
    "timing/replay.py": _TIMED,
    "timing/roofline.py": _TIMED,
    "timing/step.py": _TIMED,
    "timing/trace.py": _TIMED,
    "timing/transformers_blocks.py": _TIMED,
    "timing/tuned.py": _TIMED,
    "worker/strategies/__init__.py": _PLAIN,
    "worker/strategies/base.py": (*_LOOP, "tests/worker/test_stages.py"),
    "worker/strategies/checkpoint_states.py": _LOOP,
    "worker/strategies/compression.py": _DDP,
    "worker/strategies/ddp.py": (*_DDP, *_part("ddp 1 of 2 ")),
    "worker/strategies/deepspeed_pipeline.py": (
        *_IN_ENGINE,
        *_part("pipeline 0 of 2 gradient_accumulation_steps pipeline_schedule"),
        f"{_MARKED}[pipeline deepspeed]",
        "tests/worker/test_pipeline.py::test_in_16_bits_every_schedule_loses_it_to_the_rounding_of_16_bits[deepspeed]",
    ),
    "worker/strategies/engine_checkpoint.py": _alone("zero0", "pipeline deepspeed bf16"),
    "worker/strategies/engine_norm.py": (_UNCLIPPED, *_ENGINE),
    "worker/strategies/fsdp.py": (*_alone("fsdp", "fsdp bf16"), *_part("fsdp 0 of 4 mics_shard_size")),
    "worker/strategies/horovod.py": ("tests/extras/test_horovod_alone.py",),
    "worker/strategies/one_bit.py": ("tests/worker/test_one_bit.py",),
    "worker/strategies/parameter_server.py": _SERVER,
    "worker/strategies/phased_stage.py": (
        *_TORCH,
        *_STAGES,
        "tests/worker/test_one_of_many.py::test_a_gradient_on_its_way_back_is_held_within_the_pass_that_made_it",
    ),
    "worker/strategies/pipeline.py": (_SCALED, *_TORCH, *_STAGES),
    "worker/strategies/rpc_optimizer.py": ("tests/worker/test_rpc_optimizer.py",),
    "worker/strategies/rpc_pipeline.py": _DRIVEN,
    "worker/strategies/rpc_stage.py": _DRIVEN,
    "worker/strategies/server_link.py": _SERVER,
    "worker/strategies/stages.py": ("tests/worker/test_stages.py",),
    "worker/strategies/tensor.py": (_SCALED, *_alone("tensor", "tensor bf16"), *_part("tensor 0 of 2 ")),
    "worker/strategies/torch_loop.py": (*_LOOP, *_alone("ddp")),
    "worker/strategies/zero.py": _ENGINE,
}
"""By module, from `zerobench/`: files of tests, or one test of a file."""
