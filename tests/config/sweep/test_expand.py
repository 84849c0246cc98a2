"""From a sweep to the ordered list of its trials."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.config.machines import CPU, GIB, GPUS
from tests.tools.refusals import one_line
from zerobench.common.errors import UserError
from zerobench.config.derived.machine import Machine
from zerobench.config.sweep.expand import PlannedTrial, expand
from zerobench.config.sweep.sweep import load_sweep, shipped_sweeps
from zerobench.config.trial.optimizers import Optimizer
from zerobench.config.trial.trial import Evidence, Offload, TrialSpec

ONE_GPU = GPUS.model_copy(update={"num_gpus": 1, "cpu_cores": 16, "host_memory_bytes": 128 * GIB})
FOUR_NODES = GPUS.model_copy(update={"num_nodes": 4})


def trials(planned: Sequence[PlannedTrial]) -> list[TrialSpec]:
    return [one.trial for one in planned]


def test_lists_multiply_in_the_order_written_the_last_fastest(plan: Any):
    found = trials(plan({"strategy": ["zero2", "zero1"], "micro_batch_size": [4, 1]}))
    assert [(t.strategy, t.micro_batch_size) for t in found] == [("zero2", 4), ("zero2", 1), ("zero1", 4), ("zero1", 1)]


def test_references_come_first_and_the_rest_stays_as_written(plan: Any):
    found = trials(plan({"strategy": ["zero1", "single", "zero0"], "micro_batch_size": [1, 2]}))
    assert [(t.strategy, t.micro_batch_size) for t in found] == [
        ("single", 1),
        ("single", 2),
        ("zero1", 1),
        ("zero1", 2),
        ("zero0", 1),
        ("zero0", 2),
    ]


def test_all_trials_run_once_before_any_is_repeated(plan: Any):
    found = trials(plan({"strategy": ["single", "zero1"]}, repeats=2))
    assert [(t.strategy, t.repeat) for t in found] == [("single", 0), ("zero1", 0), ("single", 1), ("zero1", 1)]
    assert len({t.trial_id for t in found}) == 4


def test_single_trains_the_same_global_batch_in_one_process(plan: Any):
    axes = {"strategy": ["single", "zero2"], "world_size": 8, "micro_batch_size": 2, "gradient_accumulation_steps": 3}
    single, zero = trials(plan(axes, GPUS))
    assert (single.num_nodes, single.gpus_per_node) == (1, 1)
    assert (single.micro_batch_size, single.gradient_accumulation_steps) == (2, 24)
    assert single.global_batch_size == zero.global_batch_size == 48
    assert single.parity_hash == zero.parity_hash


def test_what_means_nothing_to_single_is_dropped_and_its_points_collapse(plan: Any):
    axes = {
        "strategy": "single",
        "offload_optimizer": ["none", "cpu", "nvme"],
        "offload_param": ["none", "nvme"],
        "nvme_path": ["/a", "/b"],
        "optimizer": ["adamw", "cpu_adam"],
        "ds_config": {"reduce_bucket_size": [1, 2]},
        "ds_config_file": [None, "zero2.json"],
    }
    [only] = trials(plan(axes))
    assert (only.offload_optimizer, only.offload_param, only.nvme_path) == (Offload.NONE, Offload.NONE, None)
    assert (only.optimizer, only.ds_config, only.ds_config_file) == (Optimizer.ADAMW, {}, None)


@pytest.mark.parametrize("optimizer", ["fused_adamw", "sgd"])
def test_single_keeps_an_optimizer_that_torch_has(plan: Any, optimizer: str):
    [only] = trials(plan({"strategy": "single", "optimizer": optimizer}))
    assert only.optimizer == optimizer


def test_world_sizes_of_single_with_one_global_batch_are_one_trial(plan: Any):
    axes = {"strategy": "single", "world_size": [1, 2], "gradient_accumulation_steps": [1, 2]}
    assert [t.gradient_accumulation_steps for t in trials(plan(axes))] == [1, 2, 4]


def test_a_path_that_nothing_is_swapped_to_makes_no_other_trial(plan: Any):
    axes = {"strategy": "zero3", "nvme_path": ["/a", "/b"], "offload_param": ["cpu", "nvme"]}
    assert [(t.offload_param, t.nvme_path) for t in trials(plan(axes))] == [
        ("cpu", None),
        ("nvme", "/a"),
        ("nvme", "/b"),
    ]


def test_an_exclude_entry_drops_the_points_that_match_all_its_axes(plan: Any):
    axes = {"strategy": ["zero1", "zero2"], "micro_batch_size": [1, 2, 4]}
    found = trials(plan(axes, exclude=[{"strategy": "zero1", "micro_batch_size": [2, 4]}, {"micro_batch_size": 1}]))
    assert [(t.strategy, t.micro_batch_size) for t in found] == [("zero2", 2), ("zero2", 4)]


def test_an_exclude_entry_matches_models_ranks_and_deepspeed_keys_by_what_they_are(plan: Any):
    axes = {"world_size": [1, 2], "ds_config": {"overlap_comm": [True, False], "reduce_bucket_size": 5}}
    found = trials(
        plan(axes, exclude=[{"world_size": "auto", "model": "llama-10m", "ds_config": {"overlap_comm": True}}])
    )
    assert [(t.world_size, t.ds_config["zero_optimization.overlap_comm"]) for t in found] == [
        (1, True),
        (1, False),
        (2, False),
    ]


def test_an_include_entry_adds_points_of_its_own_after_excluding(plan: Any):
    axes = {"strategy": ["zero1", "zero2"], "micro_batch_size": [4, 8], "ds_config": {"reduce_bucket_size": 7}}
    include = [{"strategy": "zero3", "ds_config": {}, "sequence_length": [64, 128]}]
    found = trials(plan(axes, include=include, exclude=[{"strategy": ["zero1", "zero3"]}]))
    key = "zero_optimization.reduce_bucket_size"
    assert [(t.strategy, t.micro_batch_size, t.sequence_length, t.ds_config) for t in found] == [
        ("zero2", 4, 1024, {key: 7}),
        ("zero2", 8, 1024, {key: 7}),
        ("zero3", 4, 64, {}),
        ("zero3", 4, 128, {}),
    ]


def test_an_include_entry_that_names_a_point_of_the_grid_adds_none(plan: Any):
    assert len(plan({"micro_batch_size": [1, 2]}, include=[{"micro_batch_size": 2}])) == 2


def test_axes_for_the_cpu_replace_the_others_there_alone(plan: Any):
    axes = {"model": "llama-1b", "micro_batch_size": [1, 2]}
    on_cpu = {"model": "llama-10m", "sequence_length": 64}
    assert {(t.model.name, t.sequence_length) for t in trials(plan(axes, CPU, on_cpu=on_cpu))} == {("llama-10m", 64)}
    assert {(t.model.name, t.sequence_length) for t in trials(plan(axes, ONE_GPU, on_cpu=on_cpu))} == {
        ("llama-1b", 1024)
    }


@pytest.mark.parametrize(
    ("layout", "machine", "expected"),
    [
        ({}, CPU, (1, 2)),
        ({}, ONE_GPU, (1, 1)),
        ({}, GPUS, (1, 8)),
        ({"world_size": "auto"}, FOUR_NODES, (4, 8)),
        ({"world_size": 4}, FOUR_NODES, (1, 4)),
        ({"world_size": 16}, FOUR_NODES, (2, 8)),
        ({"world_size": 12}, FOUR_NODES, (2, 6)),
        ({"world_size": 64}, FOUR_NODES, (1, 64)),
        ({"num_nodes": 2}, FOUR_NODES, (2, 8)),
        ({"num_nodes": "auto", "gpus_per_node": 2}, FOUR_NODES, (4, 2)),
        ({"gpus_per_node": 4}, FOUR_NODES, (1, 4)),
        ({"gpus_per_node": "auto"}, CPU, (1, 2)),
        ({"world_size": 16, "num_nodes": 4}, FOUR_NODES, (4, 4)),
        ({"world_size": 16, "gpus_per_node": 4}, FOUR_NODES, (4, 4)),
        ({"world_size": 4, "gpus_per_node": 8}, FOUR_NODES, (1, 4)),
        ({"world_size": 8, "num_nodes": 2, "gpus_per_node": 4}, FOUR_NODES, (2, 4)),
    ],
)
def test_a_layout_is_completed_by_what_the_machine_has(
    plan: Any, layout: dict[str, Any], machine: Machine, expected: tuple[int, int]
):
    [trial] = trials(plan(layout, machine))
    assert (trial.num_nodes, trial.gpus_per_node) == expected


@pytest.mark.parametrize(
    "layout",
    [
        {"world_size": 3, "num_nodes": 2},
        {"world_size": 10, "gpus_per_node": 4},
        {"world_size": 8, "num_nodes": 2, "gpus_per_node": 2},
    ],
)
def test_a_layout_that_does_not_multiply_is_refused_with_its_numbers(plan: Any, layout: dict[str, int]):
    with one_line("must be num_nodes x gpus_per_node", *(f"{axis} {count}" for axis, count in layout.items())):
        plan(layout, FOUR_NODES)


def test_a_filter_keeps_the_values_named_and_the_reference_of_the_points_kept(plan: Any):
    axes = {"strategy": ["single", "zero1", "zero3"], "world_size": [1, 2]}
    found = trials(plan(axes, only=["world_size=2"]))
    assert [(t.strategy, t.world_size, t.gradient_accumulation_steps) for t in found] == [
        ("single", 1, 2),
        ("zero1", 2, 1),
        ("zero3", 2, 1),
    ]


def test_filters_of_one_axis_add_up_and_those_of_several_narrow(plan: Any):
    axes = {"strategy": ["zero0", "zero1", "zero2"], "micro_batch_size": [1, 2]}
    found = trials(plan(axes, only=["strategy=zero1", "strategy=zero2", "micro_batch_size=2"]))
    assert [(t.strategy, t.micro_batch_size) for t in found] == [("zero1", 2), ("zero2", 2)]


def test_filters_name_models_deepspeed_keys_and_numbers_as_they_are_written(plan: Any):
    axes = {"model": ["llama-10m", "gpt2-10m"], "ds_config": [{"reduce_bucket_size": [5e7, 5e8]}, {}]}
    found = trials(plan(axes, only=["model=gpt2*", "ds_config.reduce_bucket_size=5e8,null"]))
    key = "zero_optimization.reduce_bucket_size"
    assert [(t.model.name, t.ds_config.get(key)) for t in found] == [("gpt2-10m", 500_000_000), ("gpt2-10m", None)]


def test_a_filter_without_an_axis_is_the_start_of_an_id_or_a_glob(plan: Any):
    axes = {"strategy": ["zero1", "zero2", "zero3"]}
    ids = [t.trial_id for t in trials(plan(axes, repeats=2))]
    assert [t.trial_id for t in trials(plan(axes, repeats=2, only=[ids[1]]))] == [ids[1]]
    assert [t.strategy for t in trials(plan(axes, only=["llama-10m-zero2"]))] == ["zero2"]
    assert [t.trial_id for t in trials(plan(axes, repeats=2, only=["*zero3*-r1"]))] == [ids[5]]


@pytest.mark.parametrize(
    ("only", "told"),
    [
        (["strategy=zero2"], "--only: strategy: no trial has 'zero2'; choices: zero1, zero3"),
        (["gpt"], "--only: id: no trial has 'gpt'; choices: llama-10m-zero1-n2-"),
        (["strategy=zero1", "micro_batch_size=2"], "no trial passes all of the filters"),
    ],
)
def test_filters_that_leave_nothing_are_answered_with_what_there_is(plan: Any, only: list[str], told: str):
    axes = {"strategy": ["zero1", "zero3"], "micro_batch_size": [1, 2]}
    with pytest.raises(UserError, match=told):
        plan(axes, only=only, exclude=[{"strategy": "zero1", "micro_batch_size": 2}])


def test_an_exclude_that_leaves_nothing_is_refused(plan: Any):
    with pytest.raises(UserError, match="exclude: drops every trial"):
        plan({}, exclude=[{"strategy": "zero3"}])


def test_too_many_repeats_are_refused_before_they_are_listed(plan: Any):
    with pytest.raises(UserError, match="200 trials x 1000; at most 10000 trials"):
        plan({"micro_batch_size": list(range(1, 201))}, repeats=1000)


def test_skipped_trials_are_listed_with_rule_and_reason(plan: Any):
    planned = plan({"strategy": ["zero0", "zero1"], "offload_optimizer": "cpu"}, repeats=2)
    assert [one.skipped.rule if one.skipped else None for one in planned] == ["offload_needs_stage_1", None] * 2


def test_a_reference_is_skipped_where_the_machine_has_too_few_ranks_for_all_its_points(plan: Any):
    axes = {"strategy": ["single", "zero1"], "world_size": [1, 2]}
    planned = plan(axes, ONE_GPU)
    assert [one.skipped.rule if one.skipped else None for one in planned] == [
        None,
        "ranks_exceed_gpus",
        None,
        "ranks_exceed_gpus",
    ]
    assert planned[1].skipped.reason == "the reference for 2 ranks on a node with 1 GPU; each rank needs its own GPU"


@pytest.mark.parametrize("world_sizes", [[1, 2], [2, 1]])
def test_a_reference_that_stands_for_one_point_that_fits_runs_whichever_comes_first(plan: Any, world_sizes: list[int]):
    """Two ranks of one micro-batch, and one rank of two, train the same global batch."""
    axes = {"strategy": "single", "world_size": world_sizes, "gradient_accumulation_steps": [1, 2]}
    planned = plan(axes, ONE_GPU)
    found = {one.trial.gradient_accumulation_steps: one.skipped is None for one in planned}
    assert found == {1: True, 2: True, 4: False}


@pytest.mark.parametrize("evidence", ["simulated", "formula"])
def test_a_predicted_reference_is_never_needless(plan: Any, evidence: str):
    planned = plan({"strategy": "single", "world_size": 2, "evidence": evidence, "gpu": "h100"}, ONE_GPU)
    assert [one.skipped for one in planned] == [None]


@pytest.mark.parametrize("name", list(shipped_sweeps()))
@pytest.mark.parametrize("machine", [CPU, ONE_GPU, GPUS, FOUR_NODES])
def test_every_shipped_sweep_has_something_to_run_on_every_machine(name: str, machine: Machine):
    planned = expand(load_sweep(name), machine)
    running = [one.trial for one in planned if one.skipped is None]
    measures = any(t.evidence is Evidence.MEASURED for t in running)
    assert {t.strategy for t in running} >= ({"single", "zero3"} if measures else {"zero3"})
    assert len(planned) <= 60


def test_the_quickstart_is_short_and_has_one_row_of_deepspeeds_own_buckets():
    planned = expand(load_sweep("quickstart"), CPU)
    assert [one.trial.strategy for one in planned] == ["single", "zero0", "zero1", "zero2", "zero3", "zero3"]
    assert [one.skipped for one in planned] == [None] * 6
    assert [len(one.trial.ds_config) for one in planned] == [0, 0, 2, 2, 6, 0]
    assert len({one.trial.parity_hash for one in planned}) == 1


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_trials_of_the_quickstart_are_held_against_one_reference_in_any_precision(precision: str):
    planned = expand(load_sweep("quickstart", [f"precision={precision}"]), CPU)
    assert {one.trial.global_batch_size for one in planned} == {4}


def test_nvme_rows_of_the_offload_sweep_run_once_they_have_a_folder(tmp_path: Path):
    without = expand(load_sweep("offload"), CPU)
    assert {one.skipped.rule for one in without if one.skipped} == {"nvme_needs_path"}
    assert all(one.skipped is None for one in expand(load_sweep("offload", [f"nvme_path={tmp_path}"]), CPU))


def test_what_sets_up_one_engine_is_dropped_for_the_others_and_their_points_collapse(plan: Any):
    axes = {
        "strategy": ["ddp", "zero2", "fsdp"],
        "bucket_bytes": [1_000_000, 2_000_000],
        "reshard_after_forward": [True, False],
        "ds_config": {"reduce_bucket_size": [5, 6]},
    }
    found = trials(plan(axes))
    assert [(t.strategy, t.bucket_bytes, t.reshard_after_forward, len(t.ds_config)) for t in found] == [
        ("ddp", 1_000_000, True, 0),
        ("ddp", 2_000_000, True, 0),
        ("zero2", None, True, 1),
        ("zero2", None, True, 1),
        ("fsdp", None, True, 0),
        ("fsdp", None, False, 0),
    ]


def test_what_sets_up_deepspeed_is_kept_for_its_schedule_of_a_pipeline_alone(plan: Any):
    axes = {"strategy": "pipeline", "pipeline_schedule": ["1f1b", "deepspeed"], "precision": "fp32"}
    planned = plan(axes | {"ds_config": [{"reduce_bucket_size": 1000}, {"reduce_bucket_size": 2000}]})
    settings = [(one.trial.pipeline_schedule, [*one.trial.ds_config.values()]) for one in planned]
    assert settings == [("1f1b", []), ("deepspeed", [1000]), ("deepspeed", [2000])]


def test_compression_is_refused_where_there_is_none_and_dropped_for_the_reference(plan: Any):
    axes = {"strategy": ["single", "ddp", "zero1"], "compression": ["none", "fp16"], "precision": "fp32"}
    planned = plan(axes)
    assert [(one.trial.strategy, one.trial.compression, one.skipped is None) for one in planned] == [
        ("single", "none", True),
        ("ddp", "none", True),
        ("ddp", "fp16", True),
        ("zero1", "none", True),
        ("zero1", "fp16", False),
    ]
    assert len({one.trial.parity_hash for one in planned}) == 1


def test_a_deepspeed_key_is_dropped_where_only_other_trials_of_the_sweep_read_it_and_points_collapse(plan: Any):
    axes = {
        "strategy": ["zero0", "zero2", "zero3"],
        "ds_config": {"reduce_bucket_size": [5, 6], "stage3_prefetch_bucket_size": [0, 7]},
    }
    found = plan(axes)
    assert [(one.trial.strategy, len(one.trial.ds_config)) for one in found] == [
        ("zero0", 0),
        *[("zero2", 1)] * 2,
        *[("zero3", 2)] * 4,
    ]
    assert [one.skipped for one in found] == [None] * 7
    only = plan(axes, only=["ds_config.stage3_prefetch_bucket_size=7"])  # filters speak of points, as they are written
    assert [one.trial.strategy for one in only] == ["zero0", "zero2", "zero2", "zero3", "zero3"]


def test_a_deepspeed_key_that_no_trial_of_the_sweep_reads_is_refused_by_each_that_it_was_written_for(plan: Any):
    axes = {"strategy": ["single", "zero1", "zero2"], "ds_config": {"stage3_prefetch_bucket_size": 0}}
    skipped = [one.skipped for one in plan(axes)]
    assert skipped[0] is None
    assert [skip.rule for skip in skipped[1:] if skip] == ["ds_config_not_obeyed"] * 2
