"""A record says who holds what lies at a peak, as observed: autograd, the engine, the optimizer, the loop."""

from collections.abc import Iterable, Sequence
from functools import cache

import pytest
import torch
from torch.nn import functional

from benchmarks.prediction.simulated import device_rows, gpu_trial, simulate
from tests.rank.ledger.test_model_sites import ROWS, WIDTH, Classifier, ledger_of
from zerobench.common.vocabulary import Category, Phase, StepKind
from zerobench.config.trial.model import ModelSpec
from zerobench.rank.ledger.engine_tensors import NamedTensor
from zerobench.rank.ledger.holders import holders_by_birth
from zerobench.rank.ledger.naming import Names
from zerobench.rank.ledger.sites import Origin, Site, SiteFinder
from zerobench.rank.ledger.storages import StorageCounter
from zerobench.records.records import Holder, PeakPart, RankRecord

QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}
GIVES_BACK = {
    f"zero_optimization.{key}": 0
    for key in ("stage3_max_live_parameters", "stage3_prefetch_bucket_size", "stage3_max_reuse_distance")
}
"""DeepSpeed releases each gathered parameter after its module, as it must where a model is larger than these limits."""
LAYERS, STACKED = 3, 3 * 16 * 256 * 256 * 2
"""Layers, and the bytes of a layer's stacked experts in bf16: three matrices each."""
LEAVES = {"zero_optimization.leaf_module.classes": ["Qwen3MoeExperts"]}
PLAYED = {
    "plain": (GIVES_BACK, False),
    "checkpointing": (GIVES_BACK, True),
    "leaf modules": (GIVES_BACK | LEAVES, False),
    "DeepSpeed's limits": ({}, False),
}


@cache
def played() -> dict[str, RankRecord]:
    """Simulated ranks of a small mixture of experts at stage 3."""
    model = ModelSpec(name="tiny-moe", hf_config=QWEN3_MOE)
    trials = [
        gpu_trial(
            model, 3, 2, ds_config=keys, activation_checkpointing=checkpoints, micro_batch_size=1, sequence_length=64
        )
        for keys, checkpoints in PLAYED.values()
    ]
    return dict(zip(PLAYED, simulate(trials), strict=True))


def parts(record: RankRecord, category: Category, phase: Phase = Phase.FORWARD) -> Sequence[PeakPart]:
    return device_rows(record, StepKind.STEADY, phase)[category].largest or []


def held_bytes(found: Iterable[PeakPart], *holders: Holder) -> int:
    """Bytes of which exactly these are the holders."""
    return sum(part.total_bytes for part in found if set(part.holders) == set(holders))


def test_gathered_experts_are_held_by_autograd_in_the_module_that_saved_them() -> None:
    found = [p for p in parts(played()["plain"], Category.GATHERED_PARAMETERS) if Holder.AUTOGRAD in p.holders]
    assert [(p.module, p.path, p.holders) for p in found] == [
        ("Qwen3MoeExperts", "model.layers.*.mlp.experts", [Holder.AUTOGRAD])
    ]
    assert found[0].total_bytes == LAYERS * STACKED


def test_activation_checkpointing_makes_what_autograd_held_of_them_go() -> None:
    gathered = parts(played()["checkpointing"], Category.GATHERED_PARAMETERS)
    assert gathered
    assert not [part for part in gathered if Holder.AUTOGRAD in part.holders]
    plain, less = (
        device_rows(played()[name], StepKind.STEADY, Phase.FORWARD)[Category.GATHERED_PARAMETERS].at_peak_bytes or 0
        for name in ("plain", "checkpointing")
    )
    assert plain - less == (LAYERS - 1) * STACKED  # one layer's are whole while it runs


def test_leaf_modules_let_go_of_nothing_that_autograd_holds() -> None:
    found = parts(played()["leaf modules"], Category.GATHERED_PARAMETERS)
    assert held_bytes(found, Holder.AUTOGRAD) == LAYERS * STACKED


def test_where_the_engine_keeps_them_gathered_too_both_are_named() -> None:
    found = parts(played()["DeepSpeed's limits"], Category.GATHERED_PARAMETERS)
    assert held_bytes(found, Holder.AUTOGRAD, Holder.ENGINE) == LAYERS * STACKED
    assert held_bytes(found, Holder.AUTOGRAD) == 0


def test_the_engine_holds_its_buckets_and_the_partitions_and_the_optimizer_its_moments() -> None:
    record = played()["plain"]
    expected = {
        Category.REDUCE_BUFFERS: [Holder.ENGINE],
        Category.MASTER_WEIGHTS: [Holder.ENGINE],
        Category.FIRST_MOMENT: [Holder.OPTIMIZER],
        Category.SECOND_MOMENT: [Holder.OPTIMIZER],
        Category.INPUTS: [Holder.AUTOGRAD, Holder.LOOP],  # the embedding's backward needs the tokens
        Category.WORKSPACES: [Holder.LIBRARY],
    }
    assert {category: parts(record, category)[0].holders for category in expected} == expected


def test_parts_never_come_to_more_than_their_category() -> None:
    rows = [row for row in played()["plain"].memory if row.largest]
    assert len(rows) > 20
    beyond = [row for row in rows if sum(p.total_bytes for p in row.largest or []) > (row.at_peak_bytes or 0)]
    assert beyond == []


def test_activations_of_a_users_own_model_are_held_by_autograd_in_the_module_that_saved_them() -> None:
    rows = ledger_of(Classifier(), functional.cross_entropy)
    found = rows[Phase.FORWARD, Category.ACTIVATIONS].largest
    assert {part.module for part in found} <= {"Block", "Linear"}
    assert {part.path for part in found} <= {"blocks.*", "blocks.*.layer", "head"}
    assert held_bytes(found, Holder.AUTOGRAD) == 4 * ROWS * WIDTH * 4


def test_a_refusal_says_which_modules_autograd_holds_memory_for() -> None:
    from zerobench.rank.ledger.ledger import Ledger

    model = Classifier()
    ledger = Ledger(torch.device("cpu"), list)
    with ledger.tracking(model), ledger.phase(StepKind.STEADY, Phase.FORWARD):
        logits = model(torch.randn(ROWS, WIDTH))
        held = ledger.held(Phase.FORWARD).by_holder
    assert logits.numel()
    assert held["autograd: blocks.*.layer (Linear)"] + held["autograd: blocks.* (Block)"] > 0


def test_nothing_that_autograd_saved_is_kept_alive_by_being_named() -> None:
    counter = StorageCounter()
    names = Names(counter)
    with counter:
        tensor = torch.ones(1000)
        names.saved(tensor)
        assert counter.totals["cpu"] == 4000
        del tensor
    assert counter.totals["cpu"] == 0


@pytest.mark.parametrize(("is_view", "holders"), [(True, [Holder.AUTOGRAD]), (False, [])])
def test_of_a_saved_parameter_autograd_holds_the_object_and_of_a_saved_view_the_memory(
    is_view: bool, holders: list[Holder]
) -> None:
    counter = StorageCounter(SiteFinder())
    names = Names(counter)
    with counter:
        parameter = torch.nn.Parameter(torch.ones(4, 4))
        names.saved(parameter.t() if is_view else parameter)
    storage = counter.find(parameter)
    assert storage is not None
    assert names.holders(storage, Category.GATHERED_PARAMETERS) == holders


@pytest.mark.parametrize("category", [Category.PARAMETERS, Category.MODEL_BUFFERS])
def test_what_a_model_has_for_good_is_held_by_it_alone_though_autograd_saved_a_view(category: Category) -> None:
    counter = StorageCounter(SiteFinder())
    names = Names(counter)
    with counter:
        weight = torch.ones(4, 4)
        names.walked([NamedTensor(weight, category, holder=Holder.MODEL)])
        names.saved(weight.t())
    storage = counter.find(weight)
    assert storage is not None
    assert names.holders(storage, category) == [Holder.MODEL]
    assert names.holders(storage, Category.GATHERED_PARAMETERS) == [Holder.AUTOGRAD, Holder.MODEL]


def test_what_the_engine_let_go_of_is_no_longer_its() -> None:
    counter = StorageCounter(SiteFinder())
    names = Names(counter)
    with counter:
        gathered = torch.ones(4, 4)
        names.walked([NamedTensor(gathered, Category.GATHERED_PARAMETERS)])
        names.saved(gathered.t())
    storage = counter.find(gathered)
    assert storage is not None
    assert names.holders(storage, Category.GATHERED_PARAMETERS) == [Holder.AUTOGRAD, Holder.ENGINE]
    names.walked([])
    assert names.holders(storage, Category.GATHERED_PARAMETERS) == [Holder.AUTOGRAD]


@pytest.mark.parametrize(
    ("place", "holder"),
    [
        ("deepspeed/runtime/engine.py:allreduce", Holder.ENGINE),
        ("horovod/torch/optimizer.py:step", Holder.ENGINE),
        ("torch/nn/parallel/distributed.py:_ddp_init_helper", Holder.ENGINE),
        ("torch/distributed/fsdp/_fully_shard/_fsdp_param.py:init_all_gather_outputs", Holder.ENGINE),
        ("torch/optim/adamw.py:step", Holder.OPTIMIZER),
        ("zerobench/rank/training/mixed_precision.py:step", Holder.OPTIMIZER),
    ],
)
def test_what_an_engine_or_an_optimizer_allocates_is_its_own(place: str, holder: Holder) -> None:
    assert list(holders_by_birth(Site(place, None), Category.TEMPORARIES)) == [holder]
    assert list(holders_by_birth(Site("train.py:main", None), Category.TEMPORARIES)) == []


@pytest.mark.parametrize(
    ("category", "node", "holder"),
    [
        (Category.ACTIVATIONS, None, Holder.AUTOGRAD),
        (Category.LOGITS_AND_LOSS, None, Holder.AUTOGRAD),
        (Category.ACTIVATIONS, 7, Holder.OPERATION),
        (Category.TEMPORARIES, None, Holder.OPERATION),
    ],
)
def test_autograd_keeps_what_a_forward_pass_makes_for_backward_and_an_operation_the_rest(
    category: Category, node: int | None, holder: Holder
) -> None:
    assert list(holders_by_birth(Site("model.py:forward", Origin.FORWARD, node), category)) == [holder]
