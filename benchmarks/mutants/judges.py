"""The tests that judge mutants where those that mirror the module take minutes (of them, the ones that take seconds),
import it only in a process that they start, or lie nearer by imports than those that hold each of its terms.
"""

from __future__ import annotations

_ALONE = (
    "tests/rank/strategies/test_one_rank.py"
    "::test_a_strategy_alone_takes_the_plain_steps_holds_what_it_names_and_goes_on_from_its_file"
)
_MARKED = "tests/rank/training/test_grad_norms.py::test_gradients_twice_too_large_are_marked"
_DRIVEN = ("tests/rank/strategies/test_rpc_pipeline.py",)
_LOOP = ("tests/rank/strategies/test_torch_loop.py",)
_SAMPLER = ("tests/rank/nvml/test_sampler_process.py", "tests/rank/nvml/test_sampler_record.py")


def _alone(*ways: str) -> tuple[str, ...]:
    return tuple(f"{_ALONE}[{way}]" for way in ways)


_PART = "tests/rank/worlds/test_one_of_many.py::test_one_of_many_moves_and_holds_what_its_strategy_says_to_the_byte"


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
    "tests/rank/strategies/test_one_rank.py"
    "::test_without_clipping_norms_are_told_by_whom_they_cost_nothing_and_else_in_warm_up_steps"
)
_SCALED = "tests/rank/strategies/test_one_rank.py::test_gradients_are_scaled_down_to_the_largest_norm_and_never_up"
_TORCH = _alone("pipeline", "pipeline gpipe fp16")
_IN_ENGINE = _alone("pipeline deepspeed", "pipeline deepspeed bf16")
_ENGINE = _alone("zero0", "zero0 bf16 fused_adamw", "zero0 fp16", "zero2", "zero3")

_PHYSICS = tuple(
    f"tests/estimate/time/test_physics.py::test_{name}"
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
    *(f"tests/estimate/clock/test_{name}.py" for name in ("kernels", "roofline", "replay", "trace")),
    *(f"tests/estimate/time/test_{name}.py" for name in ("pipeline", "transformers_blocks")),
    "tests/estimate/time/test_step_time_tuned.py",
    *_PHYSICS,
)
_STEP = (
    *(f"tests/estimate/time/test_{name}.py" for name in ("engines", "bound")),
    "tests/estimate/clock/test_larger.py",
    "tests/report/export/test_step_timeline.py",
    *_TIMED,
)
_RULES = ("tests/config/rules/test_strategy_rules.py", "tests/config/rules/test_rules.py")
_INSTANTS = tuple(f"tests/estimate/memory/test_{name}.py" for name in ("deepspeed_instants", "departures", "deepspeed"))

JUDGES: dict[str, tuple[str, ...]] = {
    "report/export/compare_document.py": ("tests/app/terminal/test_json.py",),
    "config/deepspeed/facts.py": tuple(f"tests/config/deepspeed/test_{name}.py" for name in ("obedience", "user_file")),
    "config/deepspeed/reading.py": ("tests/config/deepspeed/test_reading.py", "tests/config/trial/test_optimizers.py"),
    "estimate/memory/allocator.py": ("tests/estimate/memory/test_allocator.py",),
    "estimate/memory/deepspeed/stage_3.py": _INSTANTS,
    "estimate/memory/deepspeed/stage_3_offload.py": _INSTANTS,
    "estimate/memory/deepspeed/swapped.py": _INSTANTS,
    "estimate/memory/deepspeed/swapping.py": _INSTANTS,
    "rank/ledger/cuda.py": ("tests/rank/ledger/test_cuda.py", "tests/rank/ledger/test_cuda_ledger.py"),
    "rank/ledger/device.py": ("tests/rank/ledger/test_device.py",),
    "rank/ledger/engine_config.py": ("tests/rank/ledger/test_engine_config.py", *_alone("zero2")),
    "rank/ledger/engine_tensors.py": (
        "tests/rank/ledger/test_engine_walks.py",
        "tests/rank/ledger/test_engine_tensors.py",
    ),
    "estimate/allocator/expandable_segments.py": ("tests/estimate/allocator/test_expandable_segments.py",),
    "rank/ledger/held.py": ("tests/rank/ledger/test_held.py", "tests/rank/ledger/test_device.py"),
    "rank/ledger/host.py": ("tests/rank/ledger/test_host.py", "tests/rank/ledger/test_storages.py"),
    "rank/ledger/ledger.py": (
        "tests/rank/ledger/test_ledger_process.py",
        "tests/rank/ledger/test_ledger.py::test_states_are_counted_to_the_byte",
    ),
    "rank/ledger/model_sites.py": ("tests/rank/ledger/test_model_sites.py",),
    "rank/nvml/nvml_driver.py": ("tests/rank/nvml/test_device_track.py", "tests/rank/nvml/test_nvml.py"),
    "rank/ledger/recorder.py": ("tests/rank/ledger/test_recorder.py", "tests/rank/ledger/test_failures.py"),
    "rank/nvml/sampler.py": _SAMPLER,
    "rank/nvml/sampler_process.py": _SAMPLER,
    "rank/ledger/sites.py": ("tests/rank/ledger/test_sites.py",),
    "rank/ledger/storages.py": ("tests/rank/ledger/test_storages.py", "tests/rank/ledger/test_cpu_book.py"),
    "rank/nvml/topology.py": ("tests/rank/nvml/test_topology.py",),
    "estimate/time/engines.py": _STEP,
    "estimate/time/expected.py": ("tests/report/export/test_calibrate.py", *_STEP),
    "estimate/clock/larger.py": _STEP,
    "estimate/time/replayed.py": _STEP,
    "estimate/time/stages.py": _STEP,
    "estimate/time/terms.py": _STEP,
    "estimate/time/transfers.py": _STEP,
    "config/derived/availability.py": ("tests/config/rules/test_strategy_rules.py",),
    "config/derived/cluster.py": (
        "tests/config/sweep/test_plan.py",
        "tests/config/derived/test_training.py",
        "tests/config/derived/test_varied.py",
    ),
    "config/derived/host_memory.py": (
        "tests/config/rules/test_rules.py",
        "tests/config/derived/test_pipeline.py",
        "tests/config/derived/test_roles.py",
    ),
    "config/models/tensors.py": (
        *(f"tests/config/models/test_{name}.py" for name in ("tensors", "presets", "parameters")),
        "tests/estimate/memory/test_torch_strategies.py",
    ),
    "config/hardware/toolchain.py": ("tests/launch/machine/test_this_machine.py",),
    "config/trial/trial.py": (
        "tests/config/trial/test_trial.py",
        "tests/config/axes/test_axes.py",
        "tests/config/rules/test_speed_rules.py",
    ),
    "config/hardware/usual_node.py": ("tests/config/sweep/test_plan.py",),
    "config/derived/sharding.py": (
        "tests/config/rules/test_zeropp_rules.py",
        "tests/estimate/memory/test_deepspeed.py",
    ),
    "config/hardware/links.py": ("tests/config/hardware/test_links.py", "tests/estimate/clock/test_links.py"),
    "config/axes/axis_words.py": ("tests/config/axes/test_axis_words.py", "tests/config/axes/test_axes.py"),
    "config/sweep/overlay.py": ("tests/config/sweep/test_sweep.py",),
    "config/sweep/paths.py": ("tests/config/sweep/test_paths.py", "tests/config/sweep/test_sweep.py"),
    "config/rules/rules.py": (
        *_RULES,
        "tests/config/rules/test_optimizer_rules.py",
        "tests/config/sweep/test_evidence_axes.py",
    ),
    "config/rules/weight_rules.py": ("tests/config/trial/test_adapter.py", *_RULES),
    "config/rules/checkpoint_rules.py": ("tests/config/trial/test_checkpoint.py", *_RULES),
    "config/rules/pipeline_rules.py": ("tests/config/derived/test_pipeline.py", *_RULES),
    "config/rules/ramp_rules.py": ("tests/config/trial/test_batch_ramp.py", *_RULES),
    "estimate/clock/device.py": _TIMED,
    "estimate/clock/host.py": _TIMED,
    "estimate/clock/kernels.py": _TIMED,
    "estimate/clock/latency.py": _TIMED,
    "estimate/time/passes.py": _TIMED,
    "estimate/time/pipeline.py": _TIMED,
    "estimate/clock/rates.py": _TIMED,
    "estimate/clock/replay.py": _TIMED,
    "estimate/clock/roofline.py": _TIMED,
    "estimate/time/step.py": _TIMED,
    "estimate/clock/trace.py": _TIMED,
    "estimate/time/transformers_blocks.py": _TIMED,
    "estimate/time/timing_tuned.py": _TIMED,
    "rank/strategies/__init__.py": _PLAIN,
    "rank/strategies/base.py": (*_LOOP, "tests/rank/strategies/test_stages.py"),
    "rank/strategies/checkpoint_states.py": _LOOP,
    "rank/strategies/compression.py": ("tests/rank/strategies/test_compression.py", *_DDP),
    "rank/strategies/ddp.py": (*_DDP, *_part("ddp 1 of 2 ")),
    "rank/strategies/deepspeed_pipeline.py": (
        *_IN_ENGINE,
        *_part("pipeline 0 of 2 gradient_accumulation_steps pipeline_schedule"),
        f"{_MARKED}[pipeline deepspeed]",
        "tests/rank/strategies/test_pipeline.py::test_in_16_bits_every_schedule_loses_it_to_the_rounding_of_16_bits[deepspeed]",
    ),
    "rank/strategies/fsdp.py": (*_alone("fsdp", "fsdp bf16"), *_part("fsdp 0 of 4 mics_shard_size")),
    "rank/strategies/horovod.py": ("tests/extras/test_horovod_alone.py",),
    "rank/strategies/parameter_server.py": _SERVER,
    "rank/strategies/pipeline.py": (
        _SCALED,
        *_TORCH,
        *_STAGES,
        "tests/rank/worlds/test_one_of_many.py::test_a_gradient_on_its_way_back_is_held_within_the_pass_that_made_it",
    ),
    "rank/strategies/rpc_pipeline.py": _DRIVEN,
    "rank/strategies/rpc_stage.py": ("tests/rank/strategies/test_rpc_stage.py", *_DRIVEN),
    "rank/strategies/stages.py": ("tests/rank/strategies/test_stages.py",),
    "rank/strategies/tensor.py": (_SCALED, *_alone("tensor", "tensor bf16"), *_part("tensor 0 of 2 ")),
    "rank/strategies/torch_loop.py": (*_LOOP, *_alone("ddp")),
    "rank/strategies/zero.py": (_UNCLIPPED, *_ENGINE, *_alone("pipeline deepspeed bf16")),
}
"""By module, from `zerobench/`: files of tests, or one test of a file."""
