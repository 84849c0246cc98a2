"""Closed forms of DDP and FSDP2: their buckets, what they gather, and what they move."""

import dataclasses
from typing import Any

import pytest

from tests.tools.known import known
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.derived.zero_paper import bytes_per_parameter, model_states
from zerobench.config.models.presets import resolve_model
from zerobench.config.models.tensors import block_tensors, parameter_tensors
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.memory import formula_record
from zerobench.estimate.memory.record import formula_setting, fsdp_shards
from zerobench.estimate.memory.torch_strategies import Shards, bucket_count, ddp_device, ddp_moves, fsdp, fsdp_moves
from zerobench.records.records import MemoryRow


def trial(**fields: Any) -> TrialSpec:
    defaults = {"gpus_per_node": 8, "evidence": "formula", "sequence_length": 512, "prediction": {"gpu": "h200"}}
    return TrialSpec.model_validate({**defaults, **fields, "model": resolve_model("gpt2-350m")})


def row(spec: TrialSpec, phase: Phase, category: Category, place: Place = Place.DEVICE) -> MemoryRow | None:
    rows = formula_record(spec).memory
    key = (StepKind.STEADY, phase, place, category)
    return next((one for one in rows if (one.step, one.phase, one.place, one.category) == key), None)


def live(spec: TrialSpec, category: Category, place: Place = Place.DEVICE) -> int:
    found = row(spec, Phase.BACKWARD, category, place)
    return 0 if found is None else found.live_bytes


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("strategy", "stage"), [("ddp", 0), ("fsdp", 3)])
def test_model_states_after_backward_are_the_papers_of_the_stage_that_divides_the_same(
    strategy: str, stage: int, precision: str
):
    spec = trial(strategy=strategy, precision=precision)
    count = sum(parameter_tensors(spec.model))
    states = (
        Category.PARAMETERS,
        Category.GRADIENTS,
        Category.MASTER_WEIGHTS,
        Category.FIRST_MOMENT,
        Category.SECOND_MOMENT,
    )
    paper = model_states(count, 8, stage, bytes_per_parameter(spec.precision, spec.optimizer))
    assert sum(live(spec, category) for category in states) == pytest.approx(sum(dataclasses.astuple(paper)), rel=1e-4)


def test_a_larger_bucket_makes_fewer_of_them_and_none_is_left_out():
    setting = formula_setting(trial(strategy="ddp"))
    whole = 2 * setting.num_params
    assert bucket_count(setting, whole + 1) == 1
    assert bucket_count(setting, 1) == len(setting.tensors)
    assert bucket_count(setting, 10**8) < bucket_count(setting, None) < bucket_count(setting, 10**7)


@pytest.mark.parametrize(("base", "bits"), [("nf4", 4), ("int8", 8)])
def test_matrices_that_lie_as_codes_are_that_much_fewer_elements_of_a_block(base: str, bits: int):
    plain, coded = (
        fsdp_shards(trial(strategy="fsdp", precision="bf16", adapter=f"lora-16{how}")) for how in ("", f"-{base}")
    )
    matrices = 12 * 1024**2
    assert plain.block - coded.block == matrices - matrices * bits // 16
    assert plain.root == coded.root


def test_gradients_of_adapters_in_fp32_fill_buckets_twice_as_fast():
    in_16_bits, in_fp32 = (
        formula_setting(trial(strategy="ddp", precision="bf16", adapter=f"lora-16{how}")) for how in ("", "-fp32")
    )
    assert in_16_bits.num_params == in_fp32.num_params
    for elements in (10**5, 10**6):
        assert bucket_count(in_fp32, 4 * elements) == bucket_count(in_16_bits, 2 * elements) > 1
        assert bucket_count(in_fp32, 2 * elements) > bucket_count(in_16_bits, 2 * elements)


def test_ddp_moves_every_gradient_once_a_step():
    assert [(one.kind, one.calls, one.elements) for one in ddp_moves(1000, 3)] == [("all_reduce", 3, 1000)]


def test_fsdp_gathers_blocks_twice_unless_it_keeps_them_and_reduces_with_every_micro_batch():
    model = resolve_model("gpt2-350m")
    layer, blocks = block_tensors(model)
    whole = sum(parameter_tensors(model))
    root = whole - blocks * sum(layer)
    moved = {
        reshards: [
            (one.phase, one.kind, one.elements)
            for one in fsdp_moves(Shards(root, sum(layer), blocks, reshards, root, sum(layer), blocks, blocks), 2)
        ]
        for reshards in (True, False)
    }
    both = [(Phase.FORWARD, "all_gather", 2 * whole), (Phase.BACKWARD, "reduce_scatter", 2 * whole)]
    assert moved[False] == both
    assert moved[True] == [both[0], (Phase.BACKWARD, "all_gather", 2 * (whole - root)), both[1]]


def test_keeping_blocks_gathered_costs_their_bytes_in_forward():
    kept, freed = (
        known(row(trial(strategy="fsdp", reshard_after_forward=reshards), Phase.FORWARD, Category.GATHERED_PARAMETERS))
        for reshards in (False, True)
    )
    layer, blocks = block_tensors(resolve_model("gpt2-350m"))
    assert kept.live_bytes - freed.live_bytes == 2 * blocks * sum(layer)


def test_the_roots_gradients_lie_whole_beside_the_blocks_parts_and_a_tied_heads_in_three_copies():
    spec = trial(strategy="fsdp")
    (head, *_), (layer, blocks) = parameter_tensors(spec.model), block_tensors(spec.model)
    root = sum(parameter_tensors(spec.model)) - blocks * sum(layer)
    parts = blocks * sum(-(-tensor // 8) for tensor in layer)
    found = known(row(spec, Phase.BACKWARD, Category.GRADIENTS))
    assert found.own_peak_bytes == 2 * (root + 2 * head) + 4 * parts


def test_offloaded_fsdp_keeps_no_state_on_the_device():
    spec = trial(strategy="fsdp", offload_optimizer="cpu", offload_param="cpu")
    for category in (Category.MASTER_WEIGHTS, Category.FIRST_MOMENT, Category.GRADIENTS):
        assert not live(spec, category)
        assert live(spec, category, Place.HOST) > 0


def test_the_first_bucket_is_closed_at_1_mib_and_each_other_at_25():
    setting = formula_setting(trial(strategy="ddp", precision="bf16"))
    mebi = 2**19  # elements of 16 bits
    tensors = (1, 25 * mebi, 24 * mebi, mebi, mebi)
    assert bucket_count(dataclasses.replace(setting, tensors=tensors), None) == 3 + 1
    assert bucket_count(dataclasses.replace(setting, tensors=tensors[1:]), None) == 3


@pytest.mark.parametrize(("passes", "has_waiting"), [(1, False), (2, True)])
def test_parts_of_groups_that_are_copies_wait_to_be_summed_only_with_several_micro_batches(
    passes: int, has_waiting: bool
):
    spec = trial(strategy="fsdp", precision="bf16", gradient_accumulation_steps=passes)
    setting = formula_setting(spec)
    alone, copied = (
        fsdp(setting, StepKind.STEADY, fsdp_shards(spec), offloads=True, has_copies=copies)[0]
        for copies in (False, True)
    )
    more = copied.gathering.get(Category.GRADIENTS, 0) - alone.gathering.get(Category.GRADIENTS, 0)
    assert more == (2 * setting.sharded if has_waiting else 0)


@pytest.mark.parametrize(("passes", "copies"), [(1, 1), (2, 2)])
def test_in_ddps_first_step_gradients_find_no_views_into_the_buckets_before_they_are_reduced(passes: int, copies: int):
    setting = formula_setting(trial(strategy="ddp", precision="fp32", gradient_accumulation_steps=passes))
    instants = ddp_device(setting, StepKind.FIRST)
    assert instants.forward[Category.GRADIENTS] == copies * 4 * setting.num_params
