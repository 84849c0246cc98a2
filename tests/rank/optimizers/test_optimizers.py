"""Every optimizer keeps, takes and computes what its entry says: in the plain loop, and passed to DeepSpeed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rank.real_ranks import GPT2, RunTrial
from tests.rank.strategies.test_torch_loop import loop, stepped
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.derived.strategy import is_exact, strategy_info
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.optimizers import OPTIMIZERS, Optimizer, OptimizerInfo
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.estimate.memory import formula_record
from zerobench.rank.ledger.engine_tensors import walk_optimizer_states
from zerobench.rank.optimizers import adamw_8bit, make_optimizer
from zerobench.records.records import MemoryRow, RankRecord

MODEL = ModelSpec(name="tiny", hf_config=GPT2 | {"n_layer": 2, "vocab_size": 500, "n_positions": 64})
STEPS = {"warmup": 0, "memory": 1, "timed": 2}
SHAPES = ((64, 80), (4096,), (4095,), (3, 7))
MOMENTS = (Category.FIRST_MOMENT, Category.SECOND_MOMENT)

MADE = [info for info in OPTIMIZERS.values() if info.factory is not None and not info.torch_settings]
HANDED = [info for info in MADE if info.deepspeed is None]
FORMULATED = [info for info in MADE if "formula" not in info.unavailable]
SAVED = [info for info in MADE if info.not_saved is None]
each = pytest.mark.parametrize("info", MADE, ids=[info.name for info in MADE])
each_formulated = pytest.mark.parametrize("info", FORMULATED, ids=[info.name for info in FORMULATED])
each_saved = pytest.mark.parametrize("info", SAVED, ids=[info.name for info in SAVED])
each_handed = pytest.mark.parametrize("info", HANDED, ids=[info.name for info in HANDED])


def trial(info: OptimizerInfo, strategy: str, **fields: Any) -> TrialSpec:
    layout = {"gpus_per_node": 1, "gradient_accumulation_steps": 2} if strategy == "single" else {"gpus_per_node": 2}
    same = {"model": MODEL, "precision": "fp32", "sequence_length": 32, "steps": STEPS, "optimizer": info.name}
    return TrialSpec.model_validate({"strategy": strategy, **same, **layout, **fields})


@each
def test_the_states_that_it_makes_are_those_of_its_entry(info: OptimizerInfo) -> None:
    parameters = [torch.nn.Parameter(torch.ones(shape)) for shape in SHAPES]
    optimizer = make_optimizer([{"params": parameters}], trial(info, "single"))
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    with torch.compiler.set_stance("force_eager"):  # compiling takes a minute
        optimizer.step()
    assert type(optimizer).__name__ == info.torch_class
    held: Counter[Category] = Counter()
    for named in walk_optimizer_states(optimizer):
        held[named.category] += named.tensor.nbytes
    del held[Category.OTHER_OPTIMIZER_STATES]  # counters of steps
    for state in info.states:
        if state.is_partial:
            assert 0 < held.pop(state.category) < state.nbytes(sum(parameter.numel() for parameter in parameters))
    assert held == info.states_of(parameter.numel() for parameter in parameters)


def bytes_in_step(record: RankRecord) -> dict[Category, tuple[int, int]]:
    """Live, and at the peak, of what the optimizer keeps and takes in a steady step, without the bytes of scalars."""

    def is_its(row: MemoryRow) -> bool:
        return (row.step, row.phase, row.place) == (StepKind.STEADY, Phase.STEP, Place.DEVICE) and (
            row.category in {*MOMENTS, Category.TEMPORARIES}
        )

    rows = {row.category: (row.live_bytes, row.at_peak_bytes or 0) for row in record.memory if is_its(row)}
    return {category: found for category, found in rows.items() if max(found) > 64}


@each_formulated
def test_a_plain_loop_holds_and_takes_to_the_byte_what_the_formula_says(info: OptimizerInfo, ran: RunTrial) -> None:
    asked = trial(info, "single")
    formula = formula_record(asked.model_copy(update={"evidence": Evidence.FORMULA}))
    measured = bytes_in_step(ran(asked)[0])
    assert measured == bytes_in_step(formula)
    assert set(measured) >= {state.category for state in info.states}


@each_handed
@pytest.mark.parametrize("offload", ["none", "cpu"])
def test_deepspeed_trains_with_what_it_is_handed_as_the_single_process_does(
    info: OptimizerInfo, offload: str, ran: RunTrial
) -> None:
    asked = trial(info, "zero2", offload_optimizer=offload)
    ranks, [reference] = ran(asked), ran(trial(info, "single"))
    losses = [sum(each) / len(ranks) for each in zip(*(record.losses for record in ranks), strict=True)]
    tolerance = strategy_info("zero2").loss_tolerance if is_exact(asked) else 1e-3
    assert losses == pytest.approx(reference.losses, abs=tolerance)
    assert len(set(losses)) == len(losses), "nothing was learnt"
    formula = formula_record(asked.model_copy(update={"evidence": Evidence.FORMULA}))
    place = Place.DEVICE if offload == "none" else Place.HOST
    for category in MOMENTS:
        where = (category, place, Phase.STEP)
        found, said = (
            [row.live_bytes for row in record.memory if (row.category, row.place, row.phase) == where]
            for record in (ranks[0], formula)
        )
        assert found == said


@each_saved
def test_a_plain_loop_goes_on_from_the_states_that_it_saved(info: OptimizerInfo, tmp_path: Path) -> None:
    first = loop(optimizer=info.name)
    stepped(first)
    first.save(tmp_path)
    expected = stepped(first, begin=2)
    second = loop(optimizer=info.name, seed=2)
    second.load(tmp_path)
    assert stepped(second, begin=2) == expected


def trained(name: Optimizer, elements: int, steps: int) -> tuple[torch.Tensor, torch.optim.Optimizer]:
    """Weights after so many steps on gradients that are drawn anew for each."""
    drawn = torch.Generator().manual_seed(3)
    weights = torch.nn.Parameter(torch.randn(elements, generator=drawn))
    asked = trial(OPTIMIZERS[name], "single", hyperparameters={"learning_rate": 0.01})
    optimizer = make_optimizer([{"params": [weights]}], asked)
    for _ in range(steps):
        weights.grad = torch.randn(elements, generator=drawn) * torch.logspace(-4, 0, elements) + 0.01
        optimizer.step()
    return weights.detach(), optimizer


@pytest.mark.parametrize("elements", [100, 5000, 8192])
def test_adamw_in_8_bits_moves_weights_as_adamw_does(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adamw_8bit, "PIECE", 4 * adamw_8bit.BLOCK)
    (plain, _), (coarse, optimizer) = (
        trained(Optimizer.ADAMW, elements, 20),
        trained(Optimizer.ADAMW_8BIT, elements, 20),
    )
    start, _ = trained(Optimizer.ADAMW, elements, 0)
    if elements < adamw_8bit.LEAST:
        torch.testing.assert_close(coarse, plain)
    moved, apart = (plain - start).norm(), (coarse - plain).norm()
    assert apart < 0.05 * moved
    [state] = optimizer.state.values()
    assert float(state["step"]) == 20


def test_lion_moves_each_weight_by_the_sign_of_the_blend_and_decays_it() -> None:
    start, _ = trained(Optimizer.LION, 6, 0)
    weights = torch.nn.Parameter(start.clone())
    gradient = torch.tensor([1.0, -1.0, 0.0, 2.0, -2.0, 0.0])
    settings = {"learning_rate": 0.1, "weight_decay": 0.5, "adam_beta1": 0.9, "adam_beta2": 0.99}
    optimizer = make_optimizer(
        [{"params": [weights]}], trial(OPTIMIZERS[Optimizer.LION], "single", hyperparameters=settings)
    )
    weights.grad = gradient
    optimizer.step()
    torch.testing.assert_close(weights.detach(), start * (1 - 0.05) - 0.1 * gradient.sign())
    torch.testing.assert_close(optimizer.state[weights]["exp_avg"], 0.01 * gradient)
    weights.grad = -0.05 * gradient
    before = weights.detach().clone()
    optimizer.step()  # 0.9 x 0.01 - 0.1 x 0.05 is above zero still
    torch.testing.assert_close(weights.detach(), before * (1 - 0.05) - 0.1 * gradient.sign())


@pytest.mark.parametrize(
    ("strategy", "clipping", "agrees"), [("zero2", 0.0, True), ("zero3", 0.0, True), ("zero2", 1.0, False)]
)
def test_deepspeeds_muon_trains_as_the_single_process_does_unless_it_clips_the_update(
    strategy: str, clipping: float, agrees: bool, ran: RunTrial
) -> None:
    clipped = {"hyperparameters": {"gradient_clipping": clipping}}
    asked = trial(OPTIMIZERS[Optimizer.MUON], strategy, **clipped)
    ranks, [reference] = ran(asked), ran(trial(OPTIMIZERS[Optimizer.MUON], "single", **clipped))
    losses = [sum(each) / len(ranks) for each in zip(*(record.losses for record in ranks), strict=True)]
    apart = max(abs(loss - expected) for loss, expected in zip(losses, reference.losses, strict=True))
    assert is_exact(asked) is agrees
    assert (apart < strategy_info(strategy).loss_tolerance) is agrees
