"""DeepSpeed's terms against what was really held: two measured sweeps, and figures that its examples publish."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tools.at_least_one import at_least_one
from tests.tools.known import known
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.deepspeed import reading
from zerobench.config.deepspeed.case import Case
from zerobench.config.trial.optimizers import Optimizer
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.memory import formula_record
from zerobench.estimate.memory.deepspeed import Setting, deepspeed_instants, stage_3, swapping
from zerobench.estimate.memory.deepspeed import setting as setting_module
from zerobench.estimate.memory.deepspeed.gathers import gathers
from zerobench.estimate.memory.deepspeed.stage_3_offload import swapped_numbers
from zerobench.estimate.memory.deepspeed.swapped import swapped
from zerobench.estimate.memory.terms.module_order import ModuleOrder, Visit
from zerobench.records.records import MemoryRow

MEASURED = Path(__file__).parents[2] / "data" / "formulas" / "measured_on_two_ranks.json"
CELLS: list[dict[str, Any]] = json.loads(MEASURED.read_text())["cells"]
FIRST, STEADY = StepKind.FIRST, StepKind.STEADY


def cell_id(cell: dict[str, Any]) -> str:
    trial = cell["trial"]
    buckets = "cut" if trial["ds_config"] else "default"
    return f"{trial['model']['name']}-{trial['strategy']}-{trial['offload_optimizer']}-{buckets}-rank{cell['rank']}"


def is_device_total(row: MemoryRow) -> bool:
    return row.category is Category.TOTAL and row.place is Place.DEVICE


@pytest.mark.parametrize("cell", CELLS, ids=cell_id)
def test_the_formulas_are_what_a_real_rank_held(cell: dict[str, Any]) -> None:
    trial = TrialSpec.model_validate({**cell["trial"], "evidence": "formula", "prediction": {"rank": cell["rank"]}})
    rows = {(r.step, r.phase): r for r in formula_record(trial).memory if is_device_total(r)}
    for measured in at_least_one(cell["device_totals"]):
        if measured["phase"] == Phase.INIT:  # the worker's filling of weights, and no formula, decides there
            continue
        found = rows[measured["step"], measured["phase"]]
        assert found.live_bytes == pytest.approx(measured["live_bytes"], rel=1e-3), measured
        assert found.at_peak_bytes == pytest.approx(measured["peak_bytes"], rel=5e-3), measured


def test_the_measured_cells_cover_stages_buckets_offload_and_both_ranks() -> None:
    assert {cell["trial"]["strategy"] for cell in CELLS} >= {"zero0", "zero1", "zero3"}
    assert {cell["trial"]["offload_optimizer"] for cell in CELLS} == {"none", "cpu"}
    assert {cell["rank"] for cell in CELLS} == {0, 1}


def setting(stage: int, world_size: int, tensors: tuple[int, ...], **zero: Any) -> Setting:
    config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": stage, **zero}}
    visits = [Visit((number,), is_left) for number in range(len(tensors)) for is_left in (False, True)]
    back = [
        Visit((number,), is_left, is_backward=True)
        for number in reversed(range(len(tensors)))
        for is_left in (False, True)
    ]
    order = ModuleOrder(tensors, frozenset(range(len(tensors))), (*visits, *back))
    asked = Setting(Case(config, world_size, sum(tensors)), tensors, Optimizer.FUSED_ADAMW)
    return replace(asked, gathers=gathers(order, asked.case, swapped_numbers(asked, tensors))) if stage == 3 else asked


def after_step(asked: Setting) -> dict[Category, int]:
    return dict(deepspeed_instants(asked, STEADY)[Place.DEVICE].step[-1])


@pytest.mark.parametrize(
    ("tensors", "bucket", "measured"),
    [
        # DeepSpeedExamples, training/offload_states/README.md: four Linear(32768), bytes allocated after the step.
        ((32768 * 32768, 32768) * 4, 500_000_000, 18_198_419_456),
        # DeepSpeedExamples, training/bf16_master_weight/README.md: 6.86 billion parameters (as layers of 2^21), GiB.
        ((2**21,) * 3271, 50_000_000, 25.74 * 2**30),
    ],
    ids=["offload_states", "bf16_master_weight"],
)
def test_stage_3_comes_to_what_deepspeeds_examples_publish(
    tensors: tuple[int, ...], bucket: int, measured: float
) -> None:
    held = after_step(setting(3, 4, tensors, reduce_bucket_size=bucket))
    assert sum(held.values()) == pytest.approx(measured, rel=4e-3)


@pytest.mark.parametrize(
    ("file", "constant", "ours"),
    [
        ("engine.py", r"^MEMORY_OPT_ALLREDUCE_SIZE = (.*)$", setting_module.ALLREDUCE_ELEMENTS),
        ("swap_tensor/utils.py", r"^MIN_AIO_BYTES = (.*)$", reading.MIN_AIO_BYTES),
        ("swap_tensor/utils.py", r"^AIO_ALIGNED_BYTES = (.*)$", swapping._ALIGNED_BYTES),
        ("zero/stage3.py", r"_constant_buffered_norm2\(self, input, buffer_size=(\d+)\)", stage_3._NORM_ELEMENTS),
        ("zero/stage_1_and_2.py", r"self\.nccl_start_alignment_factor = (\d+)", setting_module.ALIGNMENT),
    ],
)
def test_the_constants_are_those_of_the_installed_deepspeed(file: str, constant: str, ours: int) -> None:
    package = known(importlib.util.find_spec("deepspeed"))
    source = (Path(known(package.origin)).parent / "runtime" / file).read_text()
    (found,) = re.findall(constant, source, re.MULTILINE)
    assert math.prod(int(base) ** int(power or 1) for base, power in re.findall(r"(\d+)(?:\*\*(\d+))?", found)) == ours


def test_the_flat_parameters_are_padded_to_two_elements_a_rank() -> None:
    asked = setting(2, 4, (1001, 8))
    assert asked.flat_partition == 254  # 1009 elements, padded to 1016
    assert after_step(asked)[Category.PARAMETERS] == 2 * 1016
    assert after_step(asked)[Category.MASTER_WEIGHTS] == 4 * 254


def test_stage_3_pads_each_tensor_to_the_ranks() -> None:
    asked = setting(3, 4, (1001, 8))
    assert asked.sharded == 251 + 2
    assert after_step(asked)[Category.PARAMETERS] == 2 * 253


def test_the_tensor_at_a_partitions_edge_is_held_whole_by_both_ranks() -> None:
    tensors = (100, 100, 100)
    parts = [Setting(setting(1, 2, tensors).case, tensors, Optimizer.SGD, rank=rank).own_tensors for rank in (0, 1)]
    assert parts == [((100, 100), (100, 50)), ((100, 50), (100, 100))]


def test_a_bucket_takes_gradients_from_the_last_and_a_larger_tensor_goes_alone() -> None:
    assert setting(2, 2, (900, 30, 40, 50)).filled(100) == [[50, 40], [30], [900]]
    assert setting(2, 2, (60, 30, 40, 50)).filled(100) == [[50, 40], [30, 60]]
    assert setting(3, 2, (900, 30)).filled(20) == [[30], [900]]


def test_sub_groups_are_closed_by_the_tensor_that_fills_them() -> None:
    assert setting(3, 1, (60, 60, 60, 60, 10), sub_group_size=100).sub_groups == (120, 120, 10)
    assert setting(3, 1, (60, 60)).sub_groups == (120,)


@pytest.mark.parametrize("stage", [1, 2])
def test_overlap_doubles_the_bucket_of_stages_1_and_2(stage: int) -> None:
    def bucket(overlap: bool) -> int:
        moments = deepspeed_instants(setting(stage, 1, (64, 64), reduce_bucket_size=4096, overlap_comm=overlap), STEADY)
        return moments[Place.DEVICE].bucketed[Category.REDUCE_BUFFERS]

    assert (bucket(overlap=False), bucket(overlap=True)) == (2 * 4096, 4 * 4096)


def test_stage_3_keeps_its_bucket_from_initialisation_on_and_stages_1_and_2_in_backward_alone() -> None:
    for stage, kept in ((1, False), (2, False), (3, True)):
        moments = deepspeed_instants(setting(stage, 2, (64, 64)), FIRST)[Place.DEVICE]
        assert (Category.REDUCE_BUFFERS in moments.init[-1]) is kept
        assert Category.REDUCE_BUFFERS in moments.bucketed


def test_stage_2_offloaded_keeps_three_fp32_states_the_gradients_and_staging_on_the_host() -> None:
    asked = setting(2, 2, (600, 400), offload_optimizer={"device": "cpu"})
    host = dict(deepspeed_instants(asked, STEADY)[Place.HOST].step[-1])
    assert host == {
        Category.MASTER_WEIGHTS: 2000,
        Category.GRADIENTS: 2000,
        Category.STAGING: 2 * 500 + 2 * 600,
        Category.FIRST_MOMENT: 2000,
        Category.SECOND_MOMENT: 2000,
    }
    assert after_step(asked) == {Category.PARAMETERS: 2000, Category.REDUCE_BUFFERS: 1200}


def test_accumulating_in_fp32_at_stage_1_keeps_all_gradients_for_the_whole_run() -> None:
    config = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}, "zero_optimization": {"stage": 1}}
    asked = Setting(Case(config, 4, 1000), (1000,), Optimizer.FUSED_ADAMW)
    assert asked.case.runs_bf16_optimizer
    assert after_step(asked)[Category.GRADIENTS] == 4000


def test_accumulation_holds_gradients_between_micro_steps_below_stage_3() -> None:
    held = {}
    for stage in (0, 1, 2):
        config = {
            "bf16": {"enabled": True},
            "gradient_accumulation_steps": 2,
            "zero_optimization": {"stage": stage, "reduce_bucket_size": 1000},
        }
        asked = Setting(Case(config, 2, 1000), (500, 500), Optimizer.FUSED_ADAMW)
        held[stage] = deepspeed_instants(asked, STEADY)[Place.DEVICE].forward.get(Category.GRADIENTS)
    assert held == {0: 2000, 1: 2000, 2: 1000}


def test_what_is_swapped_lies_on_nvme_and_what_is_too_small_on_the_device() -> None:
    large, small = 2 * 2**20, 2**10
    swap = {"offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"}}
    asked = setting(3, 2, (large, small), sub_group_size=large, **swap)
    moments = {step: deepspeed_instants(asked, step) for step in StepKind}
    assert moments[FIRST][Place.NVME].init[-1] == {Category.OPTIMIZER_STATES_ON_NVME: 4 * asked.sharded}
    whole = 4 * asked.sharded * 3 + 4 * large // 2
    assert moments[STEADY][Place.NVME].step[-1] == {Category.OPTIMIZER_STATES_ON_NVME: whole}
    assert moments[STEADY][Place.DEVICE].backward_end[Category.GRADIENTS] == 4 * small // 2
    assert moments[STEADY][Place.HOST].step[-1][Category.PINNED_BUFFERS] >= 4 * 4 * asked.sub_group


NVME = {"device": "nvme", "nvme_path": "/nvme"}
LARGE, UNEVEN = 2 * 2**20, 2**10 + 2
"""Elements whose half, a rank's part, is swapped in 16 bits, and whose half is not, nor a multiple of a block."""
PART, SMALL_PART = 2**20, 513


def swapping_parameters(max_in_cpu: float, **more: Any) -> dict[Place, dict[Category, int]]:
    """What lies on the host and on the drive, of a large and a small tensor that two ranks swap in 16 bits."""
    param = {**NVME, "max_in_cpu": max_in_cpu, "buffer_count": 3, "buffer_size": 1000}
    moments = deepspeed_instants(setting(3, 2, (LARGE, UNEVEN), offload_param=param, **more), STEADY)
    return {place: dict(moments[place].step[-1]) for place in (Place.HOST, Place.NVME)}


def test_parameters_that_are_swapped_leave_their_buffers_and_what_is_too_small_on_the_host() -> None:
    found = swapping_parameters(max_in_cpu=0)
    assert found[Place.NVME] == {Category.PARAMETERS: 2 * PART}
    buffers = 3 * 1024 + PART + 1024  # each of whole blocks of 512 elements, the last for the largest sub-group
    assert found[Place.HOST] == {Category.PARAMETERS: 2 * SMALL_PART, Category.PINNED_BUFFERS: 2 * buffers}


@pytest.mark.parametrize(
    ("max_in_cpu", "on_host", "on_drive"),
    [
        (SMALL_PART - 1, SMALL_PART, PART),
        (900, 900, PART),
        (PART + SMALL_PART - 1, PART + SMALL_PART - 1, PART),
        (PART + SMALL_PART, PART + SMALL_PART, 0),
        (1e9, PART + SMALL_PART, 0),
    ],
)
def test_parameters_are_swapped_unless_the_host_keeps_them_all(max_in_cpu: float, on_host: int, on_drive: int) -> None:
    found = swapping_parameters(max_in_cpu)
    assert found[Place.HOST][Category.PARAMETERS] == 2 * on_host
    assert found[Place.NVME].get(Category.PARAMETERS, 0) == 2 * on_drive


def test_without_a_swapped_parameter_no_buffer_is_made_to_swap_it_out_from() -> None:
    assert swapping_parameters(max_in_cpu=1e9)[Place.HOST][Category.PINNED_BUFFERS] == 2 * 3 * 1024


def test_a_swapped_optimizer_has_four_buffers_of_whole_blocks_and_16_bit_gradients_on_the_host() -> None:
    asked = setting(3, 2, (LARGE, UNEVEN), offload_optimizer=NVME)
    buffers = 4 * (PART + 768)  # the sub-group in whole blocks of 256 elements
    assert swapping.aligned(asked, 512, 4) == 512
    held = {Category.GRADIENTS: 2 * (PART + SMALL_PART), Category.PINNED_BUFFERS: 4 * buffers}
    assert dict(deepspeed_instants(asked, STEADY)[Place.HOST].step[-1]) == held


@pytest.mark.parametrize(("part", "is_swapped"), [(2**18, True), (2**18 - 1, False)])
def test_an_fp32_gradient_of_a_megabyte_is_swapped_and_a_smaller_one_is_not(part: int, is_swapped: bool) -> None:
    asked = setting(3, 2, (LARGE, 2 * part), sub_group_size=LARGE, offload_optimizer=NVME)
    gradients = 4 * (PART + part if is_swapped else PART)
    states = 3 * 4 * (PART + part)
    assert deepspeed_instants(asked, STEADY)[Place.NVME].step[-1] == {
        Category.OPTIMIZER_STATES_ON_NVME: states + gradients
    }


@pytest.mark.parametrize(
    ("params", "swapped_parameters"), [({"device": "cpu"}, 0), (NVME | {"max_in_cpu": 0}, 2 * PART)]
)
def test_a_step_reads_what_lies_on_the_drive_and_writes_what_it_made(params: Any, swapped_parameters: int) -> None:
    limits = {"sub_group_size": LARGE, "offload_param": params}
    asked = setting(3, 2, (LARGE, UNEVEN), offload_optimizer=NVME, **limits)
    weights = 4 * (PART + 768)  # the one sub-group in whole blocks of 256 elements
    gradients = 4 * PART  # the small tensor's stays on the device
    rows = [(row.step, row.phase, row.read_bytes, row.written_bytes, row.seconds) for row in swapped(asked)]
    written = 3 * weights + gradients + swapped_parameters
    assert rows == [
        (step, phase, read, all_written, 0)
        for step, states in ((FIRST, weights), (STEADY, 3 * weights))
        for phase, read, all_written in (
            (Phase.FORWARD, swapped_parameters, 0),
            (Phase.BACKWARD, 0, 0),
            (Phase.STEP, states + gradients, written),
        )
    ]


def test_states_below_a_megabyte_are_not_swapped_and_without_a_drive_nothing_is() -> None:
    small = setting(3, 2, (2 * (2**18 - 1),), offload_optimizer=NVME)
    assert {(row.read_bytes, row.written_bytes) for row in swapped(small)} == {(0, 0)}
    assert swapped(setting(3, 2, (LARGE,), offload_optimizer={"device": "cpu"})) == []


@pytest.mark.parametrize("device", ["cpu", "nvme"])
def test_moments_come_with_the_first_update_and_stand_in_every_phase_of_later_steps(device: str) -> None:
    offload = NVME if device == "nvme" else {"device": device}
    asked = setting(3, 2, (LARGE,), offload_optimizer=offload)
    place = Place.NVME if device == "nvme" else Place.HOST

    def held(step: StepKind) -> list[int]:
        moments = deepspeed_instants(asked, step)[place]
        instants = (moments.init[-1], moments.forward, moments.first_gradient, moments.backward_end, moments.step[-1])
        return [sum(instant.values()) for instant in instants]

    before = held(FIRST)[0]
    after = before + 2 * 4 * PART + (4 * PART if device == "nvme" else 0)  # swapped gradients come with it
    assert held(FIRST) == [before, before, before, before, after]
    assert held(STEADY)[1:] == [after] * 4


def test_a_tensor_of_the_persistence_threshold_stays_gathered_and_one_element_more_does_not() -> None:
    def kept(threshold: int, cap: int = 10**6) -> tuple[int, ...]:
        limits = {"stage3_param_persistence_threshold": threshold, "stage3_model_persistence_threshold": cap}
        return stage_3.persistent_tensors(setting(3, 2, (100, 40, 101, 30, 41), **limits))

    assert kept(100) == (100, 40, 30, 41)
    assert kept(99) == (40, 30, 41)
    assert kept(40) == (40, 30)
    assert kept(100, cap=170) == (100, 40, 30)  # the cap is reached, and what would pass it is left out
    assert kept(100, cap=169) == (100, 40)
    assert kept(100, cap=139) == (100, 30)
