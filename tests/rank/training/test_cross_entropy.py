"""Head and loss some tokens at a time give the loss of the whole, under each strategy, and take less memory."""

from functools import partial
from typing import Any

import pytest
import torch

from tests.rank.real_ranks import LLAMA, RunTrial, Tiny, check_same_steps
from tests.tools.rank_memory import apart
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.derived.strategy import is_exact
from zerobench.config.trial.trial import Evidence
from zerobench.estimate.memory.record import formula_record
from zerobench.rank.training.cross_entropy import IGNORED, chunked_loss, liger_loss, next_tokens
from zerobench.records.records import RankRecord

VOCABULARY, TOKENS = 2048, 256
CONFIG = LLAMA | {"vocab_size": VOCABULARY}
TIED = CONFIG | {"tie_word_embeddings": True}
SMALL = {"zero_optimization.reduce_bucket_size": 10**6, "zero_optimization.stage3_param_persistence_threshold": 0}
TOLERANCE = 5e-6
TINY = Tiny(CONFIG, SMALL, {"sequence_length": TOKENS})
spec, alone = TINY.spec, TINY.alone


def row(rank: RankRecord, phase: Phase, category: Category, step: StepKind = StepKind.STEADY) -> Any:
    rows = [r for r in rank.memory if (r.step, r.phase, r.category, r.place) == (step, phase, category, Place.DEVICE)]
    return rows[0] if rows else None


def own_peak(rank: RankRecord, category: Category) -> int:
    """The category's largest bytes in forward and backward."""
    found = [row(rank, phase, category) for phase in (Phase.FORWARD, Phase.BACKWARD)]
    return max(int(one.own_peak_bytes) for one in found if one is not None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_loss_and_gradients_are_those_of_whole_logits(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(96, 16, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(200, 16, generator=generator).to(dtype).requires_grad_()
    labels = next_tokens(torch.randint(200, (3, 32), generator=generator))
    whole = torch.nn.functional.cross_entropy((hidden @ weight.t()).float(), labels)
    expected = torch.autograd.grad(whole, [hidden, weight])
    loss = chunked_loss(hidden, weight, labels)
    found = torch.autograd.grad(loss, [hidden, weight])
    assert loss.dtype == torch.float32
    assert (labels == IGNORED).sum() == 3
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(loss, whole, atol=8 * unit, rtol=0)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.float() - theirs.float()).norm() < 4 * unit * theirs.float().norm()


@pytest.mark.gpu
def test_ligers_kernel_gives_the_loss_and_gradients_of_whole_logits() -> None:
    pytest.importorskip("liger_kernel")
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(512, 256, generator=generator).to("cuda", torch.bfloat16).requires_grad_()
    weight = torch.randn(4096, 256, generator=generator).mul(0.1).to("cuda", torch.bfloat16).requires_grad_()
    labels = next_tokens(torch.randint(4096, (4, 128), generator=generator)).cuda()
    whole = torch.nn.functional.cross_entropy((hidden @ weight.t()).float(), labels)
    expected = torch.autograd.grad(whole, [hidden, weight])
    for how in (liger_loss, chunked_loss):
        loss = how(hidden, weight, labels)
        found = torch.autograd.grad(loss, [hidden, weight])
        assert abs(loss.item() - whole.item()) < 0.02
        for ours, theirs in zip(found, expected, strict=True):
            assert (ours.float() - theirs.float()).norm() < 0.02 * theirs.float().norm()


ADAMW = ("single", "ddp", "zero0", "zero2", "zero3", "fsdp", "parameter-server")


@pytest.mark.parametrize(
    ("strategy", "optimizer"), [*((name, "adamw") for name in ADAMW), ("ddp", "sgd"), ("zero3", "sgd")]
)
def test_every_strategy_with_it_takes_the_steps_of_one_process_without(
    ran: RunTrial, strategy: str, optimizer: str
) -> None:
    how = {"cross_entropy": "chunked", "optimizer": optimizer}
    ours = alone(**how) if strategy == "single" else spec(strategy=strategy, **how)
    found = ran(ours)
    assert found[-1].effective_config["cross_entropy"] == "chunked"
    check_same_steps(found, ran(alone(optimizer=optimizer)))


def test_with_it_as_many_flops_are_counted_as_without(ran: RunTrial) -> None:
    whole, chunked = (
        {row.phase: row.flops for row in ran(alone(cross_entropy=how, evidence="simulated"))[0].flops}
        for how in ("full", "chunked")
    )
    assert sum(chunked.values()) == sum(whole.values()) > 0
    assert chunked[Phase.FORWARD] > whole[Phase.FORWARD]  # gradients are computed with the loss


@pytest.mark.parametrize("strategy", ["single", "zero3", "fsdp"])
def test_in_fp32_the_loss_in_the_models_type_is_the_loss(ran: RunTrial, strategy: str) -> None:
    asked = alone if strategy == "single" else partial(spec, strategy=strategy)
    found = ran(asked(cross_entropy="model_dtype"))
    assert found[-1].effective_config["cross_entropy"] == "model_dtype"
    check_same_steps(found, ran(alone()))


def test_in_16_bits_logits_in_the_models_type_take_half_of_those_in_fp32(ran: RunTrial) -> None:
    small = {"precision": "bf16", "sequence_length": 64}
    whole, own = (ran(alone(cross_entropy=how, **small))[0] for how in ("full", "model_dtype"))
    entries = 64 * VOCABULARY
    assert own_peak(whole, Category.LOGITS_AND_LOSS) == pytest.approx(12 * entries, rel=0.02)
    assert own_peak(own, Category.LOGITS_AND_LOSS) == pytest.approx(6 * entries, rel=0.02)
    for rank in (whole, own):
        formula = formula_record(alone(cross_entropy=rank_how(rank), evidence="formula", **small))
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            theirs = row(formula, phase, Category.LOGITS_AND_LOSS).own_peak_bytes
            assert row(rank, phase, Category.LOGITS_AND_LOSS).own_peak_bytes == pytest.approx(theirs, rel=0.02)
    assert apart(whole.losses, own.losses) < 0.1
    assert is_exact(alone(cross_entropy="model_dtype"))
    assert not is_exact(alone(cross_entropy="model_dtype", **small))


def rank_how(rank: RankRecord) -> str:
    return str(rank.effective_config.get("cross_entropy", "full"))


def test_a_head_tied_to_the_embedding_gets_both_gradients(ran: RunTrial) -> None:
    check_same_steps(ran(spec(strategy="zero3", config=TIED, cross_entropy="chunked")), ran(alone(config=TIED)))


@pytest.mark.parametrize("strategy", ["zero3", "fsdp"])
def test_every_byte_of_it_has_a_name_and_logits_are_never_whole(ran: RunTrial, strategy: str) -> None:
    [whole, _], [ours, _] = (ran(spec(strategy=strategy, cross_entropy=how)) for how in ("full", "chunked"))
    logits = 4 * TOKENS * VOCABULARY
    assert own_peak(whole, Category.LOGITS_AND_LOSS) >= 2 * logits
    assert own_peak(ours, Category.LOGITS_AND_LOSS) < logits / 8
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.STEP):
        total = row(ours, phase, Category.TOTAL).at_peak_bytes
        assert row(ours, phase, Category.UNATTRIBUTED).own_peak_bytes <= 0.01 * total
        if phase is not Phase.STEP:
            assert total < row(whole, phase, Category.TOTAL).at_peak_bytes - logits / 4


@pytest.mark.parametrize("strategy", ["zero3", "fsdp"])
@pytest.mark.parametrize("evidence", [Evidence.SIMULATED, Evidence.FORMULA])
def test_predictions_know_what_it_takes(ran: RunTrial, strategy: str, evidence: Evidence) -> None:
    measured = ran(spec(strategy=strategy, cross_entropy="chunked"))[0]
    asked = spec(strategy=strategy, cross_entropy="chunked", evidence=evidence)
    predicted = formula_record(asked) if evidence is Evidence.FORMULA else ran(asked)[0]
    theirs, ours = (row(rank, Phase.FORWARD, Category.TOTAL).at_peak_bytes for rank in (measured, predicted))
    assert ours == pytest.approx(theirs, rel=0.002)
    theirs, ours = (own_peak(rank, Category.LOGITS_AND_LOSS) for rank in (measured, predicted))
    assert ours == pytest.approx(theirs, rel=0.02)
