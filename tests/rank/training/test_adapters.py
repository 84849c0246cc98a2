"""Adapters and partly frozen models train alike under every strategy, and only what is trained has states."""

import importlib.metadata
from typing import Any

import pytest

from tests.config.machines import CPU
from tests.rank.real_ranks import GPT2, LLAMA, Ranks, RunTrial, Tiny
from tests.report.sample_run import SampleTrial, trial_record
from tests.tools.known import known
from tests.tools.rank_memory import flops_by_phase
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.derived.flops import FROZEN_FORMULA
from zerobench.config.sweep.expand import expand
from zerobench.config.sweep.sweep import load_sweep
from zerobench.config.trial.trial import Evidence
from zerobench.estimate.memory import formula_record
from zerobench.records.instants import end_instant
from zerobench.records.records import MemoryRow, RankRecord
from zerobench.report.explain.category import Explainer
from zerobench.report.explain.memory_causes import MOMENTS

HIDDEN, INNER, LAYERS, RANK = 64, 128, 2, 8  # of LLAMA
LORA = {"adapter": f"lora-{RANK}"}
NF4, INT8 = ({"adapter": f"lora-{RANK}-{base}"} for base in ("nf4", "int8"))
WIDE, WIDE_NF4 = ({"adapter": f"lora-{RANK}-fp32{base}", "precision": "bf16"} for base in ("", "-nf4"))
LOWER = {"frozen": r"embed_tokens|layers\.0\."}
SMALL = {"zero_optimization.reduce_bucket_size": 10**5, "zero_optimization.stage3_param_persistence_threshold": 0}
TOLERANCE = 5e-6
EVERY_STRATEGY = ["ddp", "zero0", "zero1", "zero2", "zero3", "fsdp"]
TRAINED = LAYERS * RANK * (4 * 2 * HIDDEN + 3 * (HIDDEN + INNER))
"""Elements of the adapters: A and B of queries, keys, values and output, and of the three matrices of the MLP."""
TINY = Tiny(LLAMA, SMALL, {"steps": {"warmup": 0, "timed": 1, "memory": 1}, "hyperparameters": {"learning_rate": 1e-2}})
spec, alone = TINY.spec, TINY.alone


def rows(rank: RankRecord, category: Category, step: StepKind = StepKind.STEADY) -> list[MemoryRow]:
    device = [row for row in rank.memory if (row.step, row.place) == (step, Place.DEVICE)]
    return [row for row in device if row.category is category]


def held(rank: RankRecord, category: Category) -> int:
    """Bytes of the category when the steady step is over."""
    return sum(row.live_bytes for row in rows(rank, category) if row.phase is Phase.STEP)


def most(rank: RankRecord, category: Category) -> int:
    return max((row.own_peak_bytes or 0 for row in rows(rank, category)), default=0)


def check_parity(ranks: Ranks, reference: Ranks) -> None:
    [one] = reference
    assert (one.grad_norms[0] or 0) > 0
    assert len(set(one.losses)) > 1
    assert ranks[0].losses == pytest.approx(one.losses, abs=TOLERANCE)
    assert ranks[0].grad_norms == pytest.approx(one.grad_norms, rel=1e-4)


@pytest.mark.parametrize("kind", ["Linear", "Conv1D"])
def test_an_adapter_adds_its_scaled_product_and_passes_gradients_on(kind: str) -> None:
    """Hu et al. 2021, equation 3, with alpha twice the rank."""
    import torch
    from transformers.pytorch_utils import Conv1D

    from zerobench.rank.training.adapters import LoraLayer

    torch.manual_seed(0)
    base = torch.nn.Linear(6, 4) if kind == "Linear" else Conv1D(4, 6)
    layer = LoraLayer(base.requires_grad_(requires_grad=False), 2, torch.float32)
    one, other = (torch.randn(3, 6, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
    weight = base.weight if kind == "Linear" else base.weight.T
    down, up = (matrix.weight.detach().clone().requires_grad_() for matrix in (layer.lora_A, layer.lora_B))
    expected = other @ weight.T + base.bias + 2 * other @ down.T @ up.T
    given = layer(one)
    torch.testing.assert_close(given, expected)
    (given**2).sum().backward()
    (expected**2).sum().backward()
    torch.testing.assert_close(
        [one.grad, layer.lora_A.weight.grad, layer.lora_B.weight.grad], [other.grad, down.grad, up.grad]
    )
    assert base.weight.grad is None


@pytest.mark.parametrize(("kind", "casts_sum"), [("Linear", True), ("nf4", False)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_an_adapter_in_fp32_multiplies_in_fp32_and_gives_the_matrixs_type(
    kind: str, dtype: str, *, casts_sum: bool
) -> None:
    """As PEFT writes it (tuners/lora/layer.py, Linear, and bnb.py, Linear4bit), to the bit."""
    import torch

    from zerobench.rank.training.adapters import LoraLayer
    from zerobench.rank.training.quantised import QuantisedLinear

    torch.manual_seed(0)
    half = getattr(torch, dtype)
    base: Any = torch.nn.Linear(64, 48, bias=False, dtype=half)
    if kind == "nf4":
        coded = QuantisedLinear(base, (64, 48), "nf4", torch.device("cpu"), half)
        coded.weight.data.copy_(coded.quantise(base.weight.detach()))
        base = coded
    layer = LoraLayer(base.requires_grad_(requires_grad=False), 8, torch.float32, is_wide=True)
    one, other = (
        torch.randn(5, 64, generator=torch.Generator().manual_seed(1)).to(half).requires_grad_() for _ in range(2)
    )
    down, up = (matrix.weight.detach().clone().requires_grad_() for matrix in (layer.lora_A, layer.lora_B))
    linear = torch.nn.functional.linear
    product = linear(linear(other.to(torch.float32), down), up) * 2
    expected = (base(other) + product).to(half) if casts_sum else base(other) + product.to(half)
    given = layer(one)
    assert given.dtype is half
    assert torch.equal(given, expected)
    assert not torch.equal(given, (base(other) + linear(linear(other, down.to(half)), up.to(half)) * 2))
    (given.float() ** 2).sum().backward()
    (expected.float() ** 2).sum().backward()
    for ours, theirs in ((one, other), (layer.lora_A.weight, down), (layer.lora_B.weight, up)):
        assert known(ours.grad).dtype is theirs.dtype
        assert torch.equal(known(ours.grad), known(theirs.grad))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("work", [WIDE, WIDE_NF4], ids=["fp32", "fp32 nf4"])
def test_adapters_in_fp32_train_as_in_the_single_process(ran: RunTrial, strategy: str, work: dict[str, Any]) -> None:
    """Beside a model in bf16, whose own roundings differ by the batch that a rank has."""
    ranks, [reference] = ran(spec(strategy=strategy, **work)), ran(alone(**work))
    assert (reference.grad_norms[0] or 0) > 0
    assert len(set(reference.losses)) > 1
    assert ranks[0].losses == pytest.approx(reference.losses, abs=2e-3)
    assert ranks[0].grad_norms == pytest.approx(reference.grad_norms, rel=0.02)
    for rank in ranks:
        for row in rows(rank, Category.UNATTRIBUTED):
            assert (row.own_peak_bytes or 0) <= 0.01 * most(rank, Category.TOTAL)


def test_under_fsdp_adapters_in_fp32_begin_as_under_ddp_not_rounded_to_the_models_type(ran: RunTrial) -> None:
    """Two ranks see the same samples either way, so that the model's own roundings are the same."""
    divided, whole = (ran(spec(strategy=strategy, **WIDE))[0] for strategy in ("fsdp", "ddp"))
    assert divided.losses == pytest.approx(whole.losses, abs=TOLERANCE)
    assert divided.grad_norms[0] == pytest.approx(whole.grad_norms[0], rel=1e-5)


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_adapters_in_fp32_have_no_master_weights_and_gradients_and_moments_in_fp32(
    ran: RunTrial, strategy: str, precision: str
) -> None:
    work = WIDE | {"precision": precision, "evidence": "simulated"}
    rank = ran(alone(**work) if strategy == "single" else spec(strategy=strategy, **work))[0]
    divided = 2 if strategy == "fsdp" else 1
    total = known(rank.parameters).total
    assert held(rank, Category.MASTER_WEIGHTS) == 0
    assert held(rank, Category.FIRST_MOMENT) == held(rank, Category.SECOND_MOMENT) == 4 * TRAINED / divided
    assert held(rank, Category.PARAMETERS) == (2 * (total - TRAINED) + 4 * TRAINED) / divided
    gradients = sum(row.live_bytes for row in rows(rank, Category.GRADIENTS) if row.phase is Phase.BACKWARD)
    assert gradients == 4 * TRAINED / divided


def test_under_fsdp_adapters_in_fp32_are_gathered_and_reduced_in_fp32(ran: RunTrial) -> None:
    rank = ran(spec(strategy="fsdp", evidence="simulated", **WIDE))[0]
    total = known(rank.parameters).total
    assert moved(rank) == moved(formula_record(spec(strategy="fsdp", evidence="formula", **WIDE)))
    assert moved(rank)[Phase.BACKWARD, "reduce_scatter"] == 2 * 4 * TRAINED  # of two micro-batches
    assert moved(rank)[Phase.FORWARD, "all_gather"] == 2 * (2 * (total - TRAINED) + 4 * TRAINED)


COPIED: dict[str, dict[str, Any]] = {
    "llama": {},
    "checkpointed": {"activation_checkpointing": True},
    "some": {"adapter": f"lora-{RANK}-fp32:q_proj+down_proj"},
    "eager": {"attention": "eager"},
    "gpt2": {"config": GPT2, "adapter": f"lora-{RANK}-fp32:c_attn+c_proj"},
    "codes": {"adapter": f"lora-{RANK}-fp32-nf4"},
    "fp16": {"precision": "fp16"},
}


@pytest.mark.parametrize("name", COPIED)
def test_the_closed_form_knows_what_fp32_adapters_hold_more_than_16_bit_ones_to_the_byte(
    ran: RunTrial, name: str
) -> None:
    """The fp32 copies of adapted matrices' inputs, and the adapters' own bytes; all else is as without."""
    work: dict[str, Any] = WIDE | {"evidence": "simulated", "gradient_accumulation_steps": 1} | COPIED[name]
    work["gpus_per_node"] = 1
    pair = [alone(**work | {"adapter": adapter}) for adapter in (work["adapter"], work["adapter"].replace("-fp32", ""))]
    simulated = [ran(asked)[0] for asked in pair]
    formulas = [formula_record(asked.model_copy(update={"evidence": Evidence.FORMULA})) for asked in pair]
    for step in StepKind:
        for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.STEP):
            for category in (*STAYS, *[Category.ACTIVATIONS] * (phase is Phase.FORWARD)):
                theirs, ours = (
                    [sum(row.live_bytes for row in rows(one, category, step) if row.phase is phase) for one in both]
                    for both in (simulated, formulas)
                )
                assert ours[0] - ours[1] == theirs[0] - theirs[1], (step, phase, category)
    assert formulas[0].flops == formulas[1].flops
    assert flops_by_phase(simulated[0]) == flops_by_phase(simulated[1])


@pytest.mark.parametrize("strategy", EVERY_STRATEGY)
@pytest.mark.parametrize("work", [LORA, LOWER, NF4], ids=["lora", "frozen", "nf4"])
def test_losses_and_gradient_norms_are_those_of_the_single_process(
    ran: RunTrial, strategy: str, work: dict[str, Any]
) -> None:
    ranks = ran(spec(strategy=strategy, **work))
    check_parity(ranks, ran(alone(**work)))
    for rank in ranks:
        for row in rows(rank, Category.UNATTRIBUTED):
            assert (row.own_peak_bytes or 0) <= 0.01 * most(rank, Category.TOTAL)


@pytest.mark.parametrize("strategy", ["ddp", "zero2"])
def test_a_base_in_8_bits_trains_as_it_does_in_the_single_process(ran: RunTrial, strategy: str) -> None:
    check_parity(ran(spec(strategy=strategy, **INT8)), ran(alone(**INT8)))


@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
def test_gpt2s_matrices_have_adapters_too_and_other_options_change_nothing_of_the_losses(
    ran: RunTrial, strategy: str
) -> None:
    work = {"config": GPT2 | {"n_layer": 2}, "adapter": "lora-4:c_attn+c_proj"}
    more = {"zero_init": False} if strategy == "zero3" else {"activation_checkpointing": True}
    check_parity(ran(spec(strategy=strategy, **work, **more)), ran(alone(**work)))


@pytest.mark.parametrize("strategy", ["single", *EVERY_STRATEGY])
def test_states_are_of_the_adapters_alone_and_the_frozen_model_is_parameters(ran: RunTrial, strategy: str) -> None:
    trial = alone(**LORA) if strategy == "single" else spec(strategy=strategy, **LORA)
    rank = ran(trial)[0]
    assert rank.parameters is not None
    assert rank.parameters.trainable == TRAINED
    states = TRAINED if strategy in {"single", "ddp", "zero0"} else TRAINED / 2
    weights = rank.parameters.total if strategy not in {"zero3", "fsdp"} else rank.parameters.total / 2
    assert (
        held(rank, Category.FIRST_MOMENT) == held(rank, Category.SECOND_MOMENT) == pytest.approx(4 * states, rel=0.01)
    )
    assert held(rank, Category.PARAMETERS) == pytest.approx(4 * weights, rel=0.01)
    assert 0 < most(rank, Category.GRADIENTS) <= 2 * 4 * TRAINED * 1.01


@pytest.mark.parametrize("strategy", ["single", "zero2"])
def test_a_record_names_the_releases_that_its_rank_ran(ran: RunTrial, strategy: str) -> None:
    trial = alone(**LORA) if strategy == "single" else spec(strategy=strategy, **LORA)
    rank = ran(trial)[0]
    assert {"torch", "transformers"} <= set(rank.versions) <= {"torch", "transformers", "deepspeed"}
    assert rank.versions == {name: importlib.metadata.version(name) for name in rank.versions}


def test_in_16_bits_the_frozen_weights_of_fsdp_are_no_master_weights(ran: RunTrial) -> None:
    rank = ran(spec(strategy="fsdp", precision="bf16", **LORA))[0]
    assert held(rank, Category.MASTER_WEIGHTS) == pytest.approx(4 * TRAINED / 2, rel=0.01)
    assert held(rank, Category.PARAMETERS) == pytest.approx(2 * (known(rank.parameters).total - TRAINED) / 2, rel=0.01)


@pytest.mark.parametrize("evidence", ["solo", "simulated"])
@pytest.mark.parametrize(
    ("strategy", "work"),
    [
        *((strategy, work) for strategy in ("zero2", "zero3", "fsdp") for work in (LORA, NF4)),
        *((strategy, WIDE) for strategy in ("ddp", "fsdp")),
    ],
)
def test_other_worlds_have_the_same_peak(ran: RunTrial, work: dict[str, Any], strategy: str, evidence: str) -> None:
    """Lower value of two measured ranks: gloo's thread may still hold a gathered tensor during the next gather."""
    measured, [other, *_] = (ran(spec(strategy=strategy, evidence=one, **work)) for one in ("measured", evidence))
    for step in StepKind:
        theirs = min(peak_bytes(rank, step) for rank in measured)
        assert peak_bytes(other, step) == pytest.approx(theirs, rel=0.01)


def peak_bytes(rank: RankRecord, step: StepKind) -> int:
    return max(row.foreseeable_peak_bytes or 0 for row in rows(rank, Category.TOTAL, step))


STAYS = (
    *MOMENTS,
    Category.MODEL_BUFFERS,
    Category.PARAMETERS,
    Category.MASTER_WEIGHTS,
    Category.GRADIENTS,
    Category.REDUCE_BUFFERS,
)


@pytest.mark.parametrize(
    ("strategy", "fields"),
    [
        *((strategy, {}) for strategy in ("single", *EVERY_STRATEGY)),
        *((strategy, {"evidence": "simulated", "precision": "bf16"}) for strategy in ("zero2", "zero3")),
        *((strategy, NF4) for strategy in ("zero2", "zero3", "fsdp")),
        ("zero2", INT8),
        *(
            (strategy, {"evidence": "simulated", **wide})
            for strategy in ("single", "ddp", "fsdp")
            for wide in (WIDE, WIDE_NF4)
        ),
    ],
)
def test_closed_forms_of_adapters_say_what_a_rank_holds(ran: RunTrial, strategy: str, fields: dict[str, Any]) -> None:
    asked = alone(**LORA | fields) if strategy == "single" else spec(strategy=strategy, **LORA | fields)
    rank, formula = ran(asked)[0], formula_record(asked.model_copy(update={"evidence": Evidence.FORMULA}))
    assert formula.parameters is not None
    assert (formula.parameters.total, formula.parameters.trainable) == (known(rank.parameters).total, TRAINED)
    assert formula.flops_per_step == pytest.approx(rank.flops_per_step, rel=1e-3)
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.STEP):
        for category in (*STAYS, *[Category.ACTIVATIONS] * (phase is Phase.FORWARD)):
            theirs, ours = (
                sum(row.live_bytes for row in rows(one, category) if row.phase is phase) for one in (rank, formula)
            )
            assert ours == pytest.approx(theirs, rel=0.005, abs=128), (phase, category)  # a norm, rotary tables
        if strategy in {"single", "ddp", "zero0", "zero1"}:  # at such a size temporaries are the others' peak
            theirs, ours = (
                next(row for row in rows(one, Category.TOTAL) if row.phase is phase).at_peak_bytes or 0
                for one in (rank, formula)
            )
            assert ours == pytest.approx(theirs, rel=0.01), phase


PATTERNS = {
    "embedding": r"embed_tokens",
    "lower": LOWER["frozen"],
    "upper": r"layers\.1\.|lm_head",
    "mlp": r"mlp",
    "head alone": r"model\.",
}


CHECKPOINTED = {"activation_checkpointing": True}
SOME = {"adapter": f"lora-{RANK}:o_proj+down_proj"}


@pytest.mark.parametrize(
    ("strategy", "work"),
    [
        *((strategy, {"frozen": PATTERNS["lower"]}) for strategy in ("single", *EVERY_STRATEGY)),
        *(("zero2", {"frozen": frozen}) for name, frozen in PATTERNS.items() if name != "lower"),
        *(("zero3", {"frozen": PATTERNS[name]}) for name in ("upper", "head alone")),
        *((strategy, {"frozen": PATTERNS["lower"], **CHECKPOINTED}) for strategy in ("zero2", "zero3", "fsdp")),
        ("zero2", {"frozen": PATTERNS["upper"], "activation_checkpointing": "every-2"}),
        ("zero3", {"frozen": PATTERNS["mlp"]}),
        *(("zero2", SOME | more) for more in ({}, CHECKPOINTED)),
        ("zero3", LORA | CHECKPOINTED),
    ],
)
def test_closed_forms_of_a_model_partly_frozen_say_what_a_rank_holds_computes_and_moves(
    ran: RunTrial, strategy: str, work: dict[str, Any]
) -> None:
    work = {"evidence": "simulated", "precision": "bf16", "attention": "eager", **work}  # whose products are counted
    asked = alone(**work) if strategy == "single" else spec(strategy=strategy, **work)
    rank, formula = ran(asked)[0], formula_record(asked.model_copy(update={"evidence": Evidence.FORMULA}))
    assert rank.parameters is not None
    assert formula.parameters is not None
    counts = formula.parameters.total, formula.parameters.trainable
    assert counts == (rank.parameters.total, rank.parameters.trainable)
    assert formula.flops_per_step == pytest.approx(rank.flops_per_step, rel=2e-3)
    flops = [flops_by_phase(one) for one in (rank, formula)]
    assert flops[1] == pytest.approx({phase: flops[0][phase] for phase in flops[1]}, rel=1e-3)
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.STEP):
        for category in (*STAYS, *[Category.ACTIVATIONS] * (phase is Phase.FORWARD)):
            theirs, ours = (
                sum(row.live_bytes for row in rows(one, category) if row.phase is phase) for one in (rank, formula)
            )
            assert ours == pytest.approx(theirs, rel=0.005, abs=2500), (phase, category)  # a norm, tables, a mask
    assert moved(formula) == pytest.approx(moved(rank), rel=0.01, abs=1000)


def moved(rank: RankRecord) -> dict[tuple[Phase, str], int]:
    """Bytes of each kind of collective in a steady step, but for norms and flags."""
    found = {(row.phase, row.kind): row.message_bytes for row in rank.collectives if row.step is StepKind.STEADY}
    return {key: nbytes for key, nbytes in found.items() if nbytes > 1000}


@pytest.mark.parametrize("work", [LORA, LOWER, LORA | {"cross_entropy": "chunked"}], ids=["lora", "frozen", "chunked"])
def test_flops_are_those_of_the_products_that_are_computed(ran: RunTrial, work: dict[str, Any]) -> None:
    [rank] = ran(spec(strategy="zero3", evidence="simulated", attention="eager", **work))
    assert (rank.flops_formula, rank.flops_per_step is None) == (FROZEN_FORMULA, False)
    assert sum(flops_by_phase(rank).values()) == pytest.approx(rank.flops_per_step, rel=0.005)


@pytest.mark.parametrize(
    ("strategy", "work"),
    [
        *((strategy, work) for strategy in ("zero2", "zero3") for work in (LORA, NF4)),
        *((strategy, WIDE) for strategy in ("ddp", "fsdp")),
    ],
)
def test_explain_gives_every_state_of_a_frozen_model_to_the_byte(
    ran: RunTrial, work: dict[str, Any], strategy: str
) -> None:
    asked = spec(**{"strategy": strategy, "evidence": "simulated", "precision": "bf16", **work})
    explainer = Explainer(SampleTrial(asked, trial_record(asked), list(ran(asked))), rank=0)
    instant = known(end_instant(ran(asked)[0], StepKind.STEADY, Phase.STEP, Place.DEVICE))
    found = {one.category: one for one in explainer.instant(instant)}
    states = [Category.PARAMETERS, *MOMENTS, *[Category.GRADIENTS] * (strategy == "zero3")]
    states = [category for category in states if work is not WIDE or category is not Category.MASTER_WEIGHTS]
    assert {category: found[category].not_explained_bytes for category in states} == dict.fromkeys(states, 0)
    said = " + ".join(term.words for term in found[Category.PARAMETERS].terms)
    assert ("bytes of codes" in said) == (work is NF4)
    assert f"{TRAINED:,} trained parameters" in said
    assert ("frozen parameters / 2 ranks" in said) == (strategy in {"zero3", "fsdp"})


def test_the_shipped_sweep_plays_full_fine_tuning_beside_lora_and_qlora(ran: RunTrial) -> None:
    """Sizes of a miniature model: full training has states for all weights, and codes take less than 16 bits."""
    shape = "{family: llama, num_layers: 2, hidden_size: 256, num_heads: 4, vocab_size: 512, name: tiny}"
    sweep = load_sweep("fine-tuning", [f"model={shape}", "sequence_length=64"])
    trials = [one.trial for one in expand(sweep, CPU) if one.skipped is None]
    assert {(one.strategy, one.adapter) for one in trials} == {
        (strategy, adapter) for strategy in ("zero2", "zero3") for adapter in (None, "lora-16", "lora-16-nf4")
    }
    at_stage_2 = {one.adapter: one for one in trials if one.strategy == "zero2"}
    full, beside, quantised = (ran(at_stage_2[name])[0] for name in (None, "lora-16", "lora-16-nf4"))
    assert held(full, Category.MASTER_WEIGHTS) > 3 * held(beside, Category.MASTER_WEIGHTS) > 0
    assert held(quantised, Category.PARAMETERS) < held(beside, Category.PARAMETERS)
