"""Every tensor of an engine is walked under its name, and lies where it is said to lie."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.rank.conftest import in_fork, ran  # noqa: F401 -- pytest finds them here
from tests.tools.rank_memory import unnamed
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import PredictionSpec, TrialSpec
from zerobench.rank.ledger import engine_tensors
from zerobench.rank.ledger.engine_tensors import (
    NamedTensor,
    walk_deepspeed,
    walk_masters,
    walk_module,
    walk_of,
    walk_optimizer_states,
)
from zerobench.records.records import MemoryRow, RankRecord

CONFIG = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 4, "vocab_size": 500, "n_positions": 64}
RATIO = "zero_optimization.offload_optimizer.ratio"
STATES = (Category.MASTER_WEIGHTS, Category.FIRST_MOMENT, Category.SECOND_MOMENT)


def named(walk: Iterator[NamedTensor]) -> dict[int, NamedTensor]:
    return {id(item.tensor): item for item in walk}


def test_a_modules_gradients_accumulated_ones_among_them_and_buffers_are_walked():
    module = torch.nn.BatchNorm1d(4)
    module(torch.ones(2, 4)).sum().backward()
    weight: Any = module.weight
    weight.grad_accum = torch.ones(4)
    found = named(walk_module(module))
    assert found[id(weight.grad)].category is Category.GRADIENTS
    assert found[id(weight.grad_accum)].category is Category.GRADIENTS
    assert found[id(module.running_mean)].category is Category.MODEL_BUFFERS
    assert sum(item.category is Category.PARAMETERS for item in found.values()) == 2


def test_what_codes_are_scaled_by_is_walked_with_the_matrix_or_its_parameter():
    def quantised(nested):
        scales = {"absmax": torch.zeros(4), "code": torch.zeros(16), "offset": torch.zeros(()) if nested else None}
        return SimpleNamespace(**scales, state2=quantised(nested=False) if nested else None)

    module: Any = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))
    module[0].quant_state = quantised(nested=True)
    module[1].weight.SCB = torch.zeros(2)
    held = [one.tensor.numel() for one in walk_module(module) if one.category is Category.MODEL_BUFFERS]
    assert sorted(held) == [1, 2, 4, 4, 16, 16]
    module[1].weight.quant_state = quantised(nested=False)
    assert sum(one.category is Category.MODEL_BUFFERS for one in walk_module(module)) == 8


def partitioned(*, persists: bool, numel: int) -> torch.nn.Module:
    """A parameter as stage 3 leaves it: a part in ds_tensor, hpZ's second part, and of its data `numel` of 8."""
    module = torch.nn.Module()
    parameter: Any = torch.nn.Parameter(torch.ones(numel))
    parameter.ds_tensor, parameter.ds_secondary_tensor = torch.ones(4), torch.ones(2)
    parameter.ds_numel, parameter.ds_persist = 8, persists
    module.register_parameter("weight", parameter)
    return module


@pytest.mark.parametrize(
    ("offloads", "persists", "part", "second"),
    [(True, False, Place.HOST, Place.HOST), (True, True, None, Place.HOST), (False, False, None, None)],
    ids=["offloaded", "below the persistence threshold", "not offloaded"],
)
def test_an_offloaded_parameter_lies_on_the_host_unless_it_persists(offloads, persists, part, second):
    module = partitioned(persists=persists, numel=8)
    found = [(i.tensor.numel(), i.category, i.place) for i in walk_module(module, offloads_parameters=offloads)]
    assert found == [
        (4, Category.PARAMETERS, part),
        (8, Category.GATHERED_PARAMETERS, None),
        (2, Category.PARAMETERS, second),
    ]


def test_a_parameter_that_is_not_gathered_is_its_partition_alone():
    found = list(walk_module(partitioned(persists=False, numel=0)))
    assert Category.GATHERED_PARAMETERS not in {item.category for item in found}


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (torch.optim.AdamW, {Category.FIRST_MOMENT: 1, Category.SECOND_MOMENT: 1, Category.OTHER_OPTIMIZER_STATES: 1}),
        (lambda p: torch.optim.SGD(p, momentum=0.9), {Category.FIRST_MOMENT: 1}),
    ],
    ids=["adamw", "sgd with momentum"],
)
def test_an_optimizers_states_are_its_moments_and_the_rest(make, expected):
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = make([parameter])
    parameter.sum().backward()
    optimizer.step()
    found = [item.category for item in walk_optimizer_states(optimizer, Place.HOST)]
    assert {category: found.count(category) for category in found} == expected
    assert {item.place for item in walk_optimizer_states(optimizer, Place.HOST)} == {Place.HOST}


def test_masters_are_walked_with_the_gradients_that_the_optimizer_takes():
    master = torch.nn.Parameter(torch.ones(3))
    master.grad = torch.ones(3)
    found = [(item.category, item.place) for item in walk_masters([master], Place.HOST)]
    assert found == [(Category.MASTER_WEIGHTS, Place.HOST), (Category.GRADIENTS, Place.HOST)]


def walks_of_deepspeeds_classes() -> dict[str, str]:
    """By class of DeepSpeed's optimizers, subclasses of subclasses among them, the walk that it gets."""
    from importlib import import_module

    for name in (
        "zenflow.zenflow_stage_1_and_2",
        "superoffload.superoffload_stage3",
        "fp16.fused_optimizer",
        "fp16.unfused_optimizer",
        "bf16_optimizer",
    ):
        import_module(f"deepspeed.runtime.{name}")
    from deepspeed.runtime.base_optimizer import DeepSpeedOptimizer

    def below(kind: type) -> Iterator[type]:
        children: list[type] = kind.__subclasses__()
        for child in children:
            yield child
            yield from below(child)

    bases = {"ZeROOptimizer"}
    return {c.__name__: walk_of(c).__name__ for c in below(DeepSpeedOptimizer) if c.__name__ not in bases}


def test_each_of_deepspeeds_optimizers_is_walked_as_its_ancestor(in_fork):  # noqa: F811
    walks = in_fork(walks_of_deepspeeds_classes)
    assert walks["ZenFlowZeroOptimizerSequential"] == walks["ZenFlowZeroOptimizerParallel"] == "walk_zero12"
    assert walks["SuperOffloadOptimizer_Stage3"] == walks["DeepSpeedZeroOptimizer_Stage3"] == "walk_zero3"
    assert "walk_optimizer_states" not in walks.values()
    assert walk_of(torch.optim.AdamW) is walk_optimizer_states


def offloaded(**fields: Any) -> TrialSpec:
    """Rank 0 of 4 at stage 3, its optimizer on the host, in sub-groups of which there are several."""
    work = {
        "model": ModelSpec(name="tiny", hf_config=CONFIG),
        "strategy": "zero3",
        "gpus_per_node": 4,
        "sequence_length": 32,
        "precision": "bf16",
        "evidence": "simulated",
        "offload_optimizer": "cpu",
        "optimizer": "cpu_adam",
        "prediction": PredictionSpec(gpu="A100 SXM 80GB"),
        "steps": {"warmup": 0, "timed": 1, "memory": 1},
        "ds_config": {"zero_optimization.sub_group_size": 10_000, **fields.pop("ds_config", {})},
    }
    return TrialSpec.model_validate(work | fields)


def live(rank: RankRecord, category: Category, place: Place, phase: Phase = Phase.STEP) -> int:
    rows = [r for r in rank.memory if (r.step, r.phase, r.category) == (StepKind.STEADY, phase, category)]
    return sum(row.live_bytes for row in rows if row.place is place)


def test_of_a_partly_offloaded_optimizer_each_state_lies_where_its_sub_group_does(ran):  # noqa: F811
    (whole,), (half,) = ran(offloaded()), ran(offloaded(ds_config={RATIO: 0.5}))
    for category in STATES:
        on_host, on_device = (live(half, category, place) for place in (Place.HOST, Place.DEVICE))
        assert live(whole, category, Place.DEVICE) == 0
        assert on_host + on_device == live(whole, category, Place.HOST)
        assert 0.25 < on_device / (on_host + on_device) < 0.75
        assert on_device == live(half, Category.MASTER_WEIGHTS, Place.DEVICE)


def test_of_a_partly_offloaded_optimizer_every_byte_has_a_name(ran):  # noqa: F811
    (half,) = ran(offloaded(ds_config={RATIO: 0.5}))
    assert unnamed(half, few_bytes=0) == []


def test_among_cpu_ranks_a_partly_offloaded_optimizer_is_divided_as_on_a_gpu():
    masters = [torch.nn.Parameter(torch.ones(n)) for n in (1, 2, 3)]
    zero = SimpleNamespace(fp32_partitioned_groups_flat=masters, offload_optimizer=True, partial_offload=0.5)
    assert engine_tensors._places_of_sub_groups(zero) == [None, Place.HOST, Place.HOST]
    zero.partial_offload = 1.0
    assert engine_tensors._places_of_sub_groups(zero) == [Place.HOST] * 3
    zero.offload_optimizer = False
    assert engine_tensors._places_of_sub_groups(zero) == [None] * 3


def a_zenflow_step() -> dict[Any, MemoryRow]:
    """Two steps of the real engine in one process: the rows of the second."""
    import socket

    import deepspeed
    from torch.nn import functional

    from zerobench.rank.ledger.ledger import Ledger
    from zerobench.rank.ledger.model_sites import ModelSites
    from zerobench.rank.worlds.solo import join_alone
    from zerobench.records.progress import Rank

    join_alone(Rank(0, 0, 1, socket.gethostname(), 0), True, lambda *_call: None, "cpu")
    model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.Tanh(), torch.nn.Linear(256, 100))
    zenflow = {"topk_ratio": 0.1, "update_interval": 2, "select_interval": 4, "select_strategy": "step"}
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}, "reduce_bucket_size": 100_000, "zenflow": zenflow}
    zero["overlap_comm"] = False
    adam = {"type": "AdamW", "params": {"lr": 1e-3}}
    config = {"train_micro_batch_size_per_gpu": 16, "optimizer": adam, "zero_optimization": zero}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)
    ledger = Ledger(torch.device("cpu"), lambda: walk_deepspeed(engine), sites=ModelSites(engine.module))
    for kind in StepKind:
        inputs, labels = torch.randn(16, 128), torch.zeros(16, dtype=torch.long)
        with ledger.tracking(engine.module):
            ledger.name_inputs([inputs, labels])
            with ledger.phase(kind, Phase.FORWARD):
                logits = engine(inputs)
                ledger.name_logits(logits)
                loss = functional.cross_entropy(logits, labels)
                ledger.mark_loss(loss)
            with ledger.phase(kind, Phase.BACKWARD):
                engine.backward(loss)
                del loss, logits
            with ledger.phase(kind, Phase.STEP):
                engine.step()
    return {(r.phase, r.place, r.category): r for r in ledger.rows() if r.step is StepKind.STEADY}


def test_under_zenflow_masters_gradients_and_both_kinds_of_moments_have_names(in_fork, kernels):  # noqa: F811
    rows = in_fork(a_zenflow_step)
    parameters = 128 * 256 + 256 + 256 * 100 + 100
    for category in STATES:
        assert rows[Phase.STEP, Place.HOST, category].live_bytes >= 4 * parameters
    for category in (Category.FIRST_MOMENT, Category.SECOND_MOMENT):
        assert 0 < rows[Phase.STEP, Place.DEVICE, category].live_bytes < 0.2 * 4 * parameters
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.STEP):
        peak = rows[phase, Place.DEVICE, Category.TOTAL].at_peak_bytes
        assert abs(rows[phase, Place.DEVICE, Category.UNATTRIBUTED].at_peak_bytes) <= 0.01 * peak
