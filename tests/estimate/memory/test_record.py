"""The record of a formula trial: rows as a measured rank leaves them, and one clear line where there is no formula."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tools.at_least_one import at_least_one
from tests.tools.known import known
from tests.tools.refusals import one_line
from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Category, Phase, Place, Status, StepKind
from zerobench.config.derived.zero_paper import bytes_per_parameter, model_states
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.memory import formula_record
from zerobench.estimate.memory.deepspeed.stage_3 import persistent_tensors
from zerobench.estimate.memory.record import formula_setting
from zerobench.records.instants import model_states as states_of
from zerobench.records.records import MemoryRow, RankRecord

NVME = {"offload_optimizer": "nvme", "offload_param": "nvme"}
WORLDS: list[dict[str, Any]] = [
    {"strategy": "single", "gpus_per_node": 1},
    {"strategy": "single", "gpus_per_node": 1, "precision": "fp32"},
    {"strategy": "ddp", "gradient_accumulation_steps": 2},
    {"strategy": "ddp", "precision": "fp32", "bucket_bytes": 2**22},
    {"strategy": "fsdp"},
    {"strategy": "fsdp", "precision": "fp32", "reshard_after_forward": False, "optimizer": "sgd"},
    {"strategy": "fsdp", "offload_optimizer": "cpu", "offload_param": "cpu", "gradient_accumulation_steps": 2},
    {"strategy": "zero0"},
    {"strategy": "zero0", "optimizer": "fused_adamw"},
    {"strategy": "zero0", "precision": "fp32"},
    {"strategy": "zero1", "gradient_accumulation_steps": 3},
    {"strategy": "zero1", "ds_config": {"data_types.grad_accum_dtype": "fp32"}},
    {"strategy": "zero2", "optimizer": "sgd"},
    {"strategy": "zero2", "ds_config": {"data_types.grad_accum_dtype": "fp32"}},
    {"strategy": "zero2", "offload_optimizer": "cpu", "optimizer": "cpu_adam", "gradient_accumulation_steps": 2},
    {"strategy": "zero3", "precision": "fp16"},
    {"strategy": "zero3", "offload_optimizer": "cpu", "offload_param": "cpu", "optimizer": "cpu_adam"},
    {"strategy": "zero3", **NVME, "optimizer": "cpu_adam", "activation_checkpointing": True},
    {"strategy": "zero3", "gpus_per_node": 1, "num_nodes": 1},
]


def trial(**fields: Any) -> TrialSpec:
    model = resolve_model(fields.pop("model", "gpt2-350m"))
    defaults = {"gpus_per_node": 8, "evidence": "formula", "sequence_length": 512, "prediction": {"gpu": "h200"}}
    return TrialSpec.model_validate({**defaults, **fields, "model": model})


def phases(record: RankRecord) -> Iterator[tuple[tuple[StepKind, Phase, Place], list[MemoryRow]]]:
    grouped: dict[tuple[StepKind, Phase, Place], list[MemoryRow]] = {}
    for row in record.memory:
        grouped.setdefault((row.step, row.phase, row.place), []).append(row)
    return iter(grouped.items())


def name(fields: dict[str, Any]) -> str:
    return "-".join(str(value) for value in fields.values())


@pytest.mark.parametrize("fields", WORLDS, ids=name)
def test_the_categories_sum_to_the_total_at_the_end_and_at_the_peak_of_each_phase(fields: dict[str, Any]) -> None:
    for where, rows in at_least_one(phases(formula_record(trial(**fields)))):
        (total,) = [row for row in rows if row.category is Category.TOTAL]
        parts = [row for row in rows if row.category is not Category.TOTAL]
        assert sum(row.live_bytes for row in parts) == total.live_bytes, where
        assert sum(row.at_peak_bytes or 0 for row in parts) == total.at_peak_bytes, where
        assert known(total.at_peak_bytes) >= total.live_bytes, where
        assert all((row.own_peak_bytes or 0) >= max(row.live_bytes, row.at_peak_bytes or 0) >= 0 for row in rows), where


@pytest.mark.parametrize("fields", WORLDS, ids=name)
def test_each_step_has_its_phases_and_init_belongs_to_the_first(fields: dict[str, Any]) -> None:
    found = {(row.step, row.phase) for row in formula_record(trial(**fields)).memory if row.place is Place.DEVICE}
    steps = {(step, phase) for step in StepKind for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.STEP)}
    assert found == steps | {(StepKind.FIRST, Phase.INIT)}


@pytest.mark.parametrize("fields", WORLDS, ids=name)
def test_the_first_step_leaves_what_every_later_one_leaves(fields: dict[str, Any]) -> None:
    ends = [row for row in formula_record(trial(**fields)).memory if row.phase is Phase.STEP]
    left = {
        step: {(row.place, row.category): row.live_bytes for row in ends if row.step is step and row.live_bytes}
        for step in StepKind
    }
    assert left[StepKind.FIRST] == left[StepKind.STEADY]


@pytest.mark.parametrize("strategy", ["zero0", "zero2", "zero3"])
def test_model_states_equal_the_papers_to_within_padding_and_a_tensor_at_an_edge(strategy: str) -> None:
    asked = trial(strategy=strategy, model="llama-7b")
    record = formula_record(asked)
    states = known(states_of(record))
    sizes = bytes_per_parameter(asked.precision, asked.optimizer)
    paper = model_states(known(record.parameters).total, 8, int(strategy[-1]), sizes)
    assert states.parameters_bytes == pytest.approx(paper.parameters_bytes, rel=1e-6)
    assert states.optimizer_bytes == pytest.approx(paper.optimizer_bytes, rel=1e-6)
    edge = 2 * 2 * 11008 * 4096
    assert paper.gradients_bytes * (1 - 1e-6) <= states.gradients_bytes <= paper.gradients_bytes + edge


def test_offloaded_states_lie_where_they_were_sent() -> None:
    def places(category: Category, **fields: Any) -> set[Place]:
        rows = formula_record(trial(strategy="zero3", optimizer="cpu_adam", **fields)).memory
        return {row.place for row in rows if row.category is category and row.live_bytes}

    cpu = {"offload_optimizer": "cpu", "offload_param": "cpu"}
    assert places(Category.FIRST_MOMENT, offload_optimizer="cpu") == {Place.HOST}
    assert places(Category.PARAMETERS, **cpu) == {Place.HOST}
    assert places(Category.OPTIMIZER_STATES_ON_NVME, **NVME) == {Place.NVME}
    assert Place.NVME in places(Category.PARAMETERS, **NVME)


def test_what_stage_3_swaps_is_in_the_record_and_a_lower_stage_swaps_nothing() -> None:
    swapped = [formula_record(trial(strategy=name, **NVME)).nvme for name in ("zero3", "zero2")]
    assert [sum(row.read_bytes for row in rows) > 0 for rows in swapped] == [True, False]


def test_parameters_on_drives_are_read_and_gathered_in_both_passes_of_each_micro_batch() -> None:
    """None is left from forward to backward where none is gathered ahead nor kept to be used again."""
    asked = {"strategy": "zero3", "offload_param": "nvme", "ds_config": NOTHING_KEPT, "model": "llama-7b"}
    for times in (1, 3):
        record = formula_record(trial(**asked, gradient_accumulation_steps=times))
        rows = {row.phase: row.read_bytes for row in record.nvme if row.step is StepKind.STEADY}
        written = sum(row.written_bytes for row in record.nvme if row.step is StepKind.STEADY)
        assert rows[Phase.FORWARD] == times * written > 0
        assert rows[Phase.BACKWARD] == pytest.approx(rows[Phase.FORWARD], rel=0.01)
        gathered = {
            row.phase: row.message_bytes
            for row in record.collectives
            if row.kind == "all_gather" and row.step is StepKind.STEADY
        }
        assert gathered[Phase.BACKWARD] == pytest.approx(gathered[Phase.FORWARD], rel=0.2)


def test_the_record_is_complete_and_says_what_it_rests_on() -> None:
    asked = trial(strategy="zero2", micro_batch_size=4)
    record = formula_record(asked)
    assert (record.status, record.device_type, record.trial_id) == (Status.COMPLETED, "formula", asked.trial_id)
    assert record.parameters is not None
    assert record.parameters.total == sum(record.parameters.by_component.values())
    assert record.flops_per_step == pytest.approx(6 * 354e6 * 4 * 512, rel=0.2)
    assert not any((record.step_times, record.losses, record.process_memory))
    assert any("DeepSpeed 0.19.8" in note for note in record.notes)
    assert record.departures
    assert RankRecord.model_validate_json(record.model_dump_json()) == record


OWNERS = {"zero_optimization.use_multi_rank_bucket_allreduce": False}
NOTHING_KEPT = {
    "zero_optimization.stage3_max_live_parameters": 0,
    "zero_optimization.stage3_max_reuse_distance": 0,
    "zero_optimization.stage3_prefetch_bucket_size": 0,
    "zero_optimization.stage3_param_persistence_threshold": 0,
}


@pytest.mark.parametrize(
    ("strategy", "settings", "volume"),
    [
        ("zero0", {}, 2),
        ("zero1", {}, 3),
        ("zero2", {}, 3),
        ("zero1", OWNERS, 2),
        ("zero2", OWNERS, 2),
        ("zero3", {}, 2),  # all of so small a model stays gathered from forward to backward
        ("zero3", NOTHING_KEPT, 3),
    ],
)
def test_collectives_move_what_deepspeed_does_and_with_its_settings_what_the_paper_says(
    strategy: str, settings: dict[str, Any], volume: int
) -> None:
    record = formula_record(trial(strategy=strategy, ds_config=settings, model="llama-20m"))
    rows = [row for row in record.collectives if row.step is StepKind.STEADY]
    moved = sum(row.message_bytes * (2 if row.kind == "all_reduce" else 1) for row in rows)
    assert moved == pytest.approx(volume * 2 * known(record.parameters).total, rel=1e-6)
    assert {row.group_size for row in rows} == {8}


def test_each_backward_pass_has_its_collectives_at_stages_2_and_3_and_each_update_is_gathered() -> None:
    calls = {
        strategy: {
            (row.phase, row.kind): row.calls
            for row in formula_record(trial(strategy=strategy, gradient_accumulation_steps=4)).collectives
        }
        for strategy in ("zero1", "zero2", "zero3")
    }
    assert set(calls["zero1"].values()) == {1}
    assert calls["zero2"] == {(Phase.BACKWARD, "all_reduce"): 4, (Phase.STEP, "all_gather"): 1}
    setting = formula_setting(trial(strategy="zero3"))
    assert calls["zero3"][Phase.BACKWARD, "reduce_scatter"] == 4 * len(setting.fills(setting.case.bucket_elements))
    assert calls["zero3"][Phase.FORWARD, "all_gather"] % 4 == 0
    small = persistent_tensors(setting)
    assert calls["zero3"][Phase.STEP, "all_gather"] == len(small) > 1


def test_groups_of_a_node_move_what_stays_in_it_by_their_size() -> None:
    found = {
        strategy: {
            (row.phase, row.kind, row.group_size, row.num_nodes): row.message_bytes
            for row in formula_record(trial(strategy=strategy, model="llama-20m", num_nodes=4, **how)).collectives
            if row.step is StepKind.STEADY
        }
        for strategy, how in (
            ("zero3", {"hpz_partition_size": 8, "ds_config": NOTHING_KEPT}),
            ("fsdp", {"mics_shard_size": 8}),
        )
    }
    whole = found["zero3"][Phase.FORWARD, "all_gather", 32, 4]
    assert found["zero3"][Phase.BACKWARD, "all_gather", 8, 1] == whole
    assert found["zero3"][Phase.BACKWARD, "reduce_scatter", 32, 4] == whole
    assert found["fsdp"][Phase.FORWARD, "all_gather", 8, 1] == whole
    assert found["fsdp"][Phase.BACKWARD, "all_reduce", 4, 4] == pytest.approx(whole / 8, rel=0.01)


def test_one_rank_alone_moves_nothing() -> None:
    assert formula_record(trial(strategy="zero3", gpus_per_node=1)).collectives == []


def test_the_last_rank_holds_no_more_than_the_first_where_nothing_is_padded() -> None:
    records = [formula_record(trial(strategy="zero3", prediction={"rank": rank})) for rank in (0, 7)]
    assert records[0].memory == records[1].memory
    assert [record.rank for record in records] == [0, 7]


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"strategy": "zero1", "prediction": {"rank": 8}}, r"rank: 8 of 8; choices: 0 to 7"),
        ({"strategy": "script"}, r"strategy: 'script' .*choices: "),
        ({"strategy": "zero1", "model": {"model_type": "mamba", "hidden_size": 64}}, r"model: .*closed form"),
        ({"strategy": "zero1", "ds_config": {"zero_optimization.stage": 2}}, r"stage"),
        ({"strategy": "zero1", "adapter": "lora-8", "activation_checkpointing": "ops"}, r"adapter lora-8: no formula"),
    ],
    ids=["rank", "strategy", "model", "config", "adapter"],
)
def test_what_has_no_formula_gets_one_line(fields: dict[str, Any], line: str) -> None:
    with one_line(match=line):
        formula_record(trial(**fields))


def test_a_trillion_parameters_on_a_thousand_ranks_take_no_time() -> None:
    shape = {"family": "llama", "num_layers": 128, "hidden_size": 25600, "num_heads": 160}
    record = formula_record(trial(strategy="zero3", model=shape, num_nodes=128, activation_checkpointing=True))
    assert known(record.parameters).total > 9e11


def test_without_deepspeeds_linear_layer_the_last_product_of_a_block_is_not_computed_again() -> None:
    fields = {"model": "llama-20m", "strategy": "zero3", "activation_checkpointing": True}
    key = {"zero_optimization.memory_efficient_linear": False}
    own, torchs = (
        sum(row.flops for row in formula_record(trial(**fields, ds_config=config)).flops) for config in ({}, key)
    )
    assert torchs < own


def test_a_users_own_file_says_whose_linear_layer_keeps_its_input_beside_adapters(tmp_path: Path) -> None:
    fields = {"model": "llama-20m", "strategy": "zero3", "adapter": "lora-8:q_proj"}
    file = tmp_path / "torchs.json"
    file.write_text(
        '{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3, "memory_efficient_linear": false}}',
        encoding="utf-8",
    )
    of_file, of_key, usual = (
        max(row.live_bytes for row in formula_record(trial(**fields, **said)).memory if row.category == "activations")
        for said in (
            {"ds_config_file": str(file)},
            {"ds_config": {"zero_optimization.memory_efficient_linear": False}},
            {},
        )
    )
    assert of_file == of_key < usual


def test_gpt2s_blocks_are_not_linear_layers_so_that_the_key_changes_none_of_their_products() -> None:
    fields = {"model": "gpt2-350m", "strategy": "zero3", "activation_checkpointing": True}
    key = {"zero_optimization.memory_efficient_linear": False}
    own, torchs = (formula_record(trial(**fields, ds_config=config)).flops for config in ({}, key))
    assert own == torchs


def test_a_part_of_the_optimizer_offloaded_to_nvme_has_no_formula() -> None:
    fields = {"strategy": "zero3", "offload_optimizer": "nvme", "optimizer": "cpu_adam"}
    with pytest.raises(UserError, match=r"offload_optimizer\.ratio: 0\.5 has no formula beside NVMe"):
        formula_record(trial(**fields, ds_config={"zero_optimization.offload_optimizer.ratio": 0.5}))


@pytest.mark.parametrize(("base", "simulated_mib"), [("nf4", 5878.0 - 64 - 49.5), ("int8", 8920.7 - 64 - 97.3)])
def test_beside_a_quantised_model_the_matrix_that_a_product_makes_whole_is_counted(
    base: str, simulated_mib: float
) -> None:
    """The simulated peak of backward on 8 H100, less workspaces and what the allocator rounds up."""
    asked = {"strategy": "zero2", "model": "llama-7b", "micro_batch_size": 1, "sequence_length": 2048}
    asked |= {"precision": "bf16", "optimizer": "fused_adamw", "activation_checkpointing": True}
    found = formula_record(trial(**asked, adapter=f"lora-16-{base}"))
    peak = max(
        row.at_peak_bytes or 0 for row in found.memory if row.category == "total" and row.phase is Phase.BACKWARD
    )
    assert peak / 2**20 == pytest.approx(simulated_mib, rel=0.007)
    [whole] = {
        row.at_peak_bytes for row in found.memory if row.category == "temporaries" and row.phase is Phase.BACKWARD
    }
    assert whole == 2 * 4096 * 11008 + (4 * 4096 * 11008 // 64 if base == "nf4" else 0)
