"""Formulas and the simulated engine agree: tensors on the device to half a percent, in each step, and FLOPs of passes.

What the allocator adds to tensors is no part of it: that is played by itself (tests/estimate/memory/test_allocator.py).
"""

from typing import Any

import pytest

from benchmarks.prediction.simulated import gpu_trial
from tests.tools.at_least_one import at_least_one
from tests.tools.kept_simulator import Simulate
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.models.hf_config import spec_from_config
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import Evidence
from zerobench.estimate.memory import formula_record
from zerobench.records.records import RankRecord


def own(kind: str, **config: Any) -> ModelSpec:
    """A model as a config.json of a user's own has it: GPT-2 with transformers' dropout."""
    return spec_from_config({"model_type": kind, **config}, name=kind, where="model")


GPT2 = own("gpt2", vocab_size=6007, n_embd=512, n_layer=4, n_head=8, n_positions=512)
LLAMA: dict[str, Any] = {
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 1408,
    "tie_word_embeddings": False,
}
GROUPED, MANY_WORDS = (own("llama", vocab_size=words, **LLAMA) for words in (6000, 24000))
DEEP = own("llama", vocab_size=2000, **LLAMA | {"num_hidden_layers": 8})
CHUNKED = {"cross_entropy": "chunked"}
CHECKPOINTED = {"activation_checkpointing": True}
SMALL_BUCKET = {"ds_config": {"zero_optimization.reduce_bucket_size": 4_000_000}}
TWICE = {"gradient_accumulation_steps": 2}
COPIES = {"strategy": "fsdp", "world_size": 16, "mics_shard_size": 8}
AXES: dict[str, dict[str, Any]] = {
    "dropout": {"model": GPT2, "strategy": "ddp"},
    "dropout, checkpointed": {"model": GPT2, "strategy": "fsdp", **CHECKPOINTED},
    "dropout of scores": {"model": GPT2, "strategy": "fsdp", "attention": "eager"},
    "dropout beside adapters": {"model": GPT2, "strategy": "fsdp", "adapter": "lora-16"},
    "grouped heads in fp32": {"strategy": "ddp", "precision": "fp32"},
    "grouped heads in fp32, checkpointed": {
        "model": MANY_WORDS,
        "strategy": "fsdp",
        "precision": "fp32",
        **CHECKPOINTED,
    },
    "copies of shards": {**COPIES, **TWICE},
    "adapters, copies of shards": {**COPIES, **TWICE, "adapter": "lora-16"},
    "copies of shards, one micro batch": COPIES,
    "chunked at stage 2": {"stage": 2, **CHUNKED},
    "chunked at stage 3": {"stage": 3, **CHUNKED},
    "chunked, adapters": {"strategy": "fsdp", "adapter": "lora-8:q_proj+v_proj", **CHUNKED, **TWICE},
    "chunked, tied": {"model": GPT2, "strategy": "fsdp", "world_size": 2, **CHUNKED, **CHECKPOINTED},
    "kept gathered": {"model": GPT2, "strategy": "fsdp", "reshard_after_forward": False, **CHECKPOINTED},
    "within blocks": {"stage": 3, "world_size": 64, **CHECKPOINTED, **SMALL_BUCKET},
    "within the first block": {
        "model": DEEP,
        "stage": 3,
        "world_size": 64,
        "sequence_length": 1024,
        "micro_batch_size": 8,
        **CHECKPOINTED,
        **SMALL_BUCKET,
    },
    "within blocks, reduced": {"stage": 2, "activation_checkpointing": True, **SMALL_BUCKET},
    "within blocks, kept": {"stage": 1, **SMALL_BUCKET},
    "within blocks, tied": {"model": GPT2, "stage": 2, **CHECKPOINTED, **SMALL_BUCKET},
    "within blocks, divided": {"strategy": "fsdp", **CHECKPOINTED},
    "offloaded, accumulated": {"strategy": "fsdp", "offload_param": "cpu", "offload_optimizer": "cpu", **TWICE},
}
USUAL: dict[str, Any] = {
    "model": GROUPED,
    "stage": 0,
    "world_size": 8,
    "sequence_length": 512,
    "micro_batch_size": 2,
    "optimizer": "adamw",
    "activation_checkpointing": False,
}
ASKED = {name: gpu_trial(**USUAL | axes) for name, axes in AXES.items()}
NO_COURSE = {"chunked, adapters"}
"""Those whose peaks lie within blocks, of which no course was recorded (zerobench/estimate/memory/course.py)."""
UNTOLD = {Category.ALLOCATOR_ROUNDING, Category.UNATTRIBUTED}
"""What formulas say nothing of."""
WORDS = 20_000
"""Bytes of labels and counters that are not told apart."""


@pytest.fixture(scope="module")
def simulated(simulate: Simulate) -> dict[str, RankRecord]:
    return dict(zip(ASKED, simulate(list(ASKED.values())), strict=True))


def by_formula(name: str) -> RankRecord:
    return formula_record(ASKED[name].model_copy(update={"evidence": Evidence.FORMULA}))


def peaks(rank: RankRecord) -> dict[StepKind, int]:
    """The largest sum of tensors on the device in each step."""
    sums: dict[tuple[StepKind, Phase], int] = {}
    for row in rank.memory:
        if row.place is Place.DEVICE and row.category not in {Category.TOTAL, *UNTOLD}:
            where = row.step, row.phase
            sums[where] = sums.get(where, 0) + (row.at_peak_bytes or 0)
    return {step: max(sums[step, phase] for phase in Phase if (step, phase) in sums) for step in StepKind}


def left(rank: RankRecord) -> int:
    """Bytes of gradients as a steady step's forward pass ends."""
    where = (StepKind.STEADY, Phase.FORWARD, Place.DEVICE, Category.GRADIENTS)
    return sum(row.live_bytes for row in rank.memory if (row.step, row.phase, row.place, row.category) == where)


@pytest.mark.parametrize("name", [name for name in ASKED if name not in NO_COURSE])
def test_each_steps_peak_is_the_engines(simulated: dict[str, RankRecord], name: str) -> None:
    engine, formula = simulated[name], by_formula(name)
    for step, found in at_least_one(peaks(engine).items()):
        assert peaks(formula)[step] == pytest.approx(found, rel=0.005, abs=WORDS), step


@pytest.mark.parametrize("name", ASKED)
def test_each_passes_flops_are_the_engines(simulated: dict[str, RankRecord], name: str) -> None:
    engine, formula = (
        {(row.step, row.phase): row.flops for row in rank.flops if row.phase is not Phase.STEP}
        for rank in (simulated[name], by_formula(name))
    )
    for where, flops in at_least_one(engine.items()):
        assert formula[where] == pytest.approx(flops, rel=0.005), where


@pytest.mark.parametrize("name", [name for name in ASKED if "copies" in name])
def test_gradients_that_wait_for_the_other_groups_are_in_the_type_they_are_reduced_in(
    simulated: dict[str, RankRecord], name: str
) -> None:
    assert left(by_formula(name)) == pytest.approx(left(simulated[name]), rel=0.001)
    assert (left(simulated[name]) > 0) == (ASKED[name].gradient_accumulation_steps > 1)


def test_the_host_adds_a_gradients_part_to_what_earlier_micro_batches_left(simulated: dict[str, RankRecord]) -> None:
    name = "offloaded, accumulated"
    engine, formula = (
        max(
            row.at_peak_bytes or 0
            for row in rank.memory
            if (row.step, row.place, row.category) == (StepKind.STEADY, Place.HOST, Category.REDUCE_BUFFERS)
        )
        for rank in (simulated[name], by_formula(name))
    )
    assert formula == pytest.approx(engine, rel=0.01)
