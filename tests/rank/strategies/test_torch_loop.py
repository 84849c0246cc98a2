"""The plain loop's step is that of a hand-written one, in each precision, and goes on from what it saved."""

from pathlib import Path
from typing import Any

import pytest
import torch

from zerobench.common.vocabulary import Category
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec
from zerobench.rank.ledger.device import Device
from zerobench.rank.ledger.recorder import Marks, PlainPhases
from zerobench.rank.strategies.base import Job, causal_loss, only_learning_rate
from zerobench.rank.strategies.checkpoint_states import make_optimizer_states
from zerobench.rank.strategies.torch_loop import FP16_LOSS_SCALE, Single
from zerobench.rank.training.grad_norms import GradNorms
from zerobench.rank.training.model import prepare_model
from zerobench.rank.training.weights import fill_weights

CPU = torch.device("cpu")
CONFIG: dict[str, Any] = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
CONFIG |= {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 32}
RATES = (1e-2, 5e-3)
ADAM = {"adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-6, "weight_decay": 0.05}
CLIPPING = 0.05
"""Less than the norm of these gradients."""


def job_of(trial: TrialSpec, seed: int = 1, **fields: Any) -> Job:
    """Inputs of a strategy on the CPU."""
    return Job(
        trial=trial,
        device=Device(CPU, "cpu", None, "gloo"),
        shape_model=prepare_model(trial, CPU, trial.attention),
        fill_weights=lambda model: fill_weights(model, seed),
        **{"ds_config": {}, **fields},
    )


def loop(
    precision: str = "fp32", *, seed: int = 1, tied: bool = False, clipping: float = CLIPPING, optimizer: str = "adamw"
) -> Single:
    asked = {"precision": precision, "optimizer": optimizer, "hyperparameters": {"gradient_clipping": clipping, **ADAM}}
    model = ModelSpec(name="tiny", hf_config=CONFIG | {"tie_word_embeddings": tied})
    trial = TrialSpec.model_validate({"model": model, "strategy": "single", **asked})
    made = Single(job_of(trial, seed, norms=GradNorms(clipping)))
    made.build()
    return made


def batches(seed: int, count: int = 3) -> list[torch.Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 64, (2, 16), generator=drawn) for _ in range(count)]


def stepped(made: Single, *, begin: int = 0) -> list[float]:
    """The losses of two steps."""
    losses = []
    for number, rate in enumerate(RATES, start=begin):
        made.job.norms.begin("memory")
        losses.append(float(made.step(batches(number), rate, PlainPhases(Marks()))))
    return losses


def weights(made: Single) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in made.module.named_parameters()}


def by_hand() -> tuple[dict[str, torch.Tensor], list[float], list[float]]:
    """The same steps: the mean of all micro-batches' losses, one backward pass, clipped, updated."""
    made = loop()
    parameters = list(made.module.parameters())
    optimizer = torch.optim.AdamW(parameters, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.05)
    losses, norms = [], []
    for number, rate in enumerate(RATES):
        optimizer.param_groups[0]["lr"] = rate
        loss = torch.stack([causal_loss(made.module, tokens) for tokens in batches(number)]).mean()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, CLIPPING)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return weights(made), losses, norms


@pytest.mark.parametrize(("precision", "apart"), [("fp32", 1e-6), ("bf16", 2e-2), ("fp16", 5e-3)])
def test_a_step_is_that_of_the_mean_loss_clipped_at_the_rate_that_was_asked(precision: str, apart: float) -> None:
    expected, losses, norms = by_hand()
    made = loop(precision)
    assert stepped(made) == pytest.approx(losses, rel=apart)
    assert made.job.norms.values() == pytest.approx(norms, rel=10 * apart)
    assert min(norms) > CLIPPING
    moved = {
        name: tensor - before for (name, tensor), before in zip(expected.items(), weights(loop()).values(), strict=True)
    }
    for name, tensor in weights(made).items():
        assert (tensor.float() - expected[name]).norm() < 0.2 * moved[name].norm() + 1e-6, name
    assert made.learning_rate() == RATES[-1]
    assert all(parameter.grad is None for parameter in made.module.parameters())


def test_in_16_bits_the_optimizer_updates_fp32_masters_and_the_model_is_what_they_round_to() -> None:
    made = loop("fp16")
    stepped(made)
    masters = [item.tensor for item in made.walk() if item.category is Category.MASTER_WEIGHTS]
    parameters = list(made.module.parameters())
    assert len(masters) == len(parameters)
    for master, parameter in zip(masters, parameters, strict=True):
        assert (master.dtype, parameter.dtype) == (torch.float32, torch.float16)
        assert torch.equal(master.half(), parameter)
    assert made.effective_config()["loss_scale"] == FP16_LOSS_SCALE
    assert [item for item in loop().walk() if item.category is Category.MASTER_WEIGHTS] == []


def test_without_clipping_a_step_that_asks_for_no_norm_is_not_clipped() -> None:
    plain, clipped = loop(clipping=0.0), loop()
    for made in (plain, clipped):
        made.job.norms.begin("memory")
        for parameter in made.module.parameters():
            parameter.grad = torch.ones_like(parameter)
        made._clip_all()
    assert plain.job.norms.values() == []
    assert all(
        bool((parameter.grad == 1).all()) for parameter in plain.module.parameters() if parameter.grad is not None
    )
    squares = [float(p.grad.square().sum()) for p in clipped.module.parameters() if p.grad is not None]
    assert sum(squares) ** 0.5 == pytest.approx(CLIPPING, rel=1e-3)


@pytest.mark.parametrize(("precision", "tied"), [("fp32", False), ("fp32", True), ("bf16", False)])
def test_a_loop_goes_on_from_what_another_saved_to_the_bit(tmp_path: Path, precision: str, tied: bool) -> None:
    first = loop(precision, tied=tied)
    stepped(first)
    first.save(tmp_path)
    second = loop(precision, seed=2, tied=tied)
    second.load(tmp_path)
    assert stepped(second, begin=2) == stepped(first, begin=2)
    for name, tensor in weights(first).items():
        assert torch.equal(tensor, weights(second)[name]), name


@pytest.mark.parametrize(("precision", "tied"), [("fp32", False), ("fp32", True), ("bf16", False)])
def test_each_state_is_saved_once_under_its_parameters_name(tmp_path: Path, precision: str, tied: bool) -> None:
    made = loop(precision, tied=tied)
    stepped(made)
    made.save(tmp_path)
    kept = torch.load(tmp_path / "states.pt", weights_only=True)
    names = [name for name, _ in made.module.named_parameters()]
    kinds = ["model", "exp_avg", "exp_avg_sq", "step", *(["master"] if precision == "bf16" else [])]
    assert set(kept) == {f"{kind}/{name}" for kind in kinds for name in names}


def test_states_that_are_made_to_be_loaded_into_change_no_weight_and_keep_the_learning_rate() -> None:
    parameters = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))]
    groups = [{"params": parameters[:1], "lr": 0.5}, {"params": parameters[1:], "lr": 0.25}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.1)
    make_optimizer_states(optimizer)
    assert [set(optimizer.state[one]) for one in parameters] == [{"step", "exp_avg", "exp_avg_sq"}] * 2
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.25]
    assert all(bool((one == 1).all()) and one.grad is None for one in parameters)
    for one in parameters:
        optimizer.state[one]["exp_avg"].fill_(7)
    make_optimizer_states(optimizer)  # there already
    assert all(bool((optimizer.state[one]["exp_avg"] == 7).all()) for one in parameters)


def test_a_learning_rate_is_told_only_where_all_parameters_have_it() -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    one, other = (torch.optim.SGD([parameter], lr=rate) for rate in (0.5, 0.25))
    assert only_learning_rate(one, one) == 0.5
    with pytest.raises(RuntimeError, match=r"different learning rates: \[0.25, 0.5\]"):
        only_learning_rate(one, other)
