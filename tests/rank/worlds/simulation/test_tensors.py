"""Simulated tensors in place of a module's own: what torch's Module._apply does to them."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

GPU = "simgpu"


def ask_anywhere(make_value: str) -> str:
    """The message of the error that asking for a value here gives."""
    import torch

    from zerobench.rank.worlds.simulation.tensors import SimulatedTensors, UnknownValueError

    ask = {"item": lambda t: t.item(), "float": float, "bool": lambda t: bool(t > 0), "tolist": lambda t: t.tolist()}[
        make_value
    ]
    with SimulatedTensors(lambda _flops: None), pytest.raises(UnknownValueError) as error:
        ask(torch.empty(1, device=GPU))
    return str(error.value)


@pytest.mark.parametrize("how", ["item", "float", "bool", "tolist"])
def test_asking_at_a_place_that_nobody_listed_is_an_error_that_names_the_place(in_fork, how):
    message = in_fork(ask_anywhere, how)
    assert message.startswith("a simulated tensor has no value; asked by ")
    assert "test_tensors.py" in message
    assert "ask_anywhere" in message


def ask_as_engines_do() -> dict[str, Any]:
    """Answers that functions of DeepSpeed and transformers get for tensors without values."""
    import socket

    import torch
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler
    from deepspeed.runtime.utils import CheckOverflow, clip_grad_norm_, get_norm_with_moe_layers_fast
    from transformers.masking_utils import find_packed_sequence_indices

    from zerobench.rank.worlds.simulation import shortcuts
    from zerobench.rank.worlds.simulation.tensors import SimulatedTensors
    from zerobench.rank.worlds.solo import join_alone
    from zerobench.records.progress import Rank

    join_alone(Rank(0, 0, 2, socket.gethostname(), 0), True, lambda *_: None, "cpu")
    shortcuts.install()
    with SimulatedTensors(lambda _flops: None):
        parameter = torch.nn.Parameter(torch.empty(5))
        parameter.grad = torch.empty(5)
        scaler = DynamicLossScaler(
            65536.0, scale_window=1000, min_scale=1.0, delayed_shift=1, consecutive_hysteresis=False
        )
        overflow = CheckOverflow(None).has_overflow([parameter])
        scaler.update_scale(overflow)
        clip_grad_norm_([parameter], 1.0)
        return {
            "overflow": overflow,
            "scale": scaler.cur_scale,
            "norm": get_norm_with_moe_layers_fast(torch.empty(1), None),
            "packed": find_packed_sequence_indices(torch.empty(2, 8, dtype=torch.int64)),
        }


def test_the_engine_is_told_of_finite_gradients_and_whole_sequences(in_fork):
    assert in_fork(ask_as_engines_do) == {"overflow": False, "scale": 65536.0, "norm": 1.0, "packed": None}


def test_every_place_with_a_listed_answer_still_exists():
    from zerobench.rank.worlds.simulation.tensors import _ANSWERS

    assert _ANSWERS
    for place, pattern, _ in _ANSWERS:
        package, _, rest = place.partition("/")
        found = find_spec(package)  # does not import it
        assert found is not None, package
        assert found.origin is not None, package
        path = Path(found.origin).parent / rest
        sources = [path] if path.is_file() else sorted(path.rglob("*.py"))
        functions = [re.findall(r"\bdef (\w+)", source.read_text(encoding="utf-8")) for source in sources]
        assert any(pattern.fullmatch(name) for names in functions for name in names), (place, pattern.pattern)


def take_adam_steps() -> dict[str, Any]:
    """Torch's AdamW on simulated parameters of device and host."""
    import torch

    from zerobench.rank.worlds.simulation.tensors import SimulatedTensors

    seen = {}
    with SimulatedTensors(lambda _flops: None):
        for device in (GPU, "cpu"):
            for foreach in (False, True):
                parameter = torch.nn.Parameter(torch.empty(5, device=device))
                optimizer = torch.optim.AdamW([parameter], foreach=foreach)
                steps = []
                for _ in range(3):
                    parameter.grad = torch.empty_like(parameter)
                    optimizer.step()
                    steps.append(optimizer.state[parameter]["step"].item())
                seen[f"{device} {foreach}"] = steps
    return seen


def test_adams_step_counters_keep_their_true_values(in_fork):
    seen = in_fork(take_adam_steps)
    assert len(seen) == 4
    for how, steps in seen.items():
        assert steps == [1.0, 2.0, 3.0], how


def make_scalars() -> dict[str, Any]:
    """Scalars made of plain numbers, and what arithmetic on the host makes of them."""
    import torch

    from zerobench.rank.worlds.simulation.tensors import SimulatedTensors

    with SimulatedTensors(lambda _flops: None):
        scale = torch.tensor(65536.0)
        scale.mul_(0.5)
        return {
            "real": torch.tensor(5.5).item(),
            "whole": torch.tensor(7).item(),
            "truth": torch.tensor(True).item(),
            "sum": (torch.tensor(2.0) + torch.tensor(0.25)).item(),
            "scale": scale.item(),
            "larger": bool(torch.tensor(3.0) > torch.tensor(2.0)),
        }


def test_scalars_made_of_plain_numbers_keep_their_true_values(in_fork):
    seen = in_fork(make_scalars)
    assert seen == {"real": 5.5, "whole": 7, "truth": True, "sum": 2.25, "scale": 32768.0, "larger": True}
    assert [type(value) for value in seen.values()] == [float, int, bool, float, float, bool]


def lose_a_value() -> str:
    """A scalar with a value, overwritten by one without."""
    import torch

    from zerobench.rank.worlds.simulation.tensors import SimulatedTensors, UnknownValueError

    with SimulatedTensors(lambda _flops: None):
        scalar = torch.tensor(1.0)
        scalar.copy_(torch.empty(4).sum())
        with pytest.raises(UnknownValueError) as error:
            scalar.item()
    return str(error.value)


def test_a_scalar_that_is_overwritten_by_an_unknown_one_has_no_value_any_more(in_fork):
    assert "lose_a_value" in in_fork(lose_a_value)


class Tied(torch.nn.Module):
    """Two layers with one weight, which only stands for the tensors in it, as a DTensor does."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head, self.alone = (torch.nn.Linear(8, 4, bias=False, device="meta") for _ in range(3))
        halves = (TwoTensor(torch.empty(4, 8, device="meta"), torch.empty(4, 8, device="meta")) for _ in range(2))
        self.embedding.weight, self.alone.weight = map(torch.nn.Parameter, halves)
        self.head.weight = self.embedding.weight


def give_memory(simulated: bool) -> list[Any]:
    """Give memory to a model with a tied weight: equality with the tied and with a third weight, whether memory is
    still missing, numbers of parameters and of allocations.
    """
    from zerobench.rank.worlds.simulation import tensors

    if simulated:
        tensors.install()
    model, asked = Tied(), []

    def given(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_meta:
            return tensor
        asked.append(tensor)
        return torch.empty_like(tensor, device="cpu")

    for _ in range(2):  # the second time there is nothing left to do
        model._apply(given)
    embedding, head, alone = model.embedding.weight, model.head.weight, model.alone.weight
    return [embedding is head, embedding is alone, head.is_meta, len(list(model.parameters())), len(asked)]


@pytest.mark.parametrize("simulated", [True, False])
def test_a_tied_weight_that_is_exchanged_stays_tied_and_is_given_memory_once(in_fork, simulated):
    assert in_fork(give_memory, simulated) == [True, False, False, 2, 2]
