"""A loop of somebody else's is heard in order, and left as it was."""

import importlib
from typing import Any

import pytest
import torch

from zerobench.launch.emulate.inside.compiling import MODULE, hear_compiling
from zerobench.launch.emulate.inside.loop_hooks import LoopHooks


class Heard:
    """Writes down what it hears."""

    def __init__(self):
        self.calls: list[Any] = []
        self.roots: list[Any] = []

    def forward_begins(self, args, kwargs):
        self.calls.append(("forward", len(args), sorted(kwargs)))

    def forward_ended(self, output):
        self.calls.append("forward ended")

    def backward_begins(self, loss):
        self.calls.append("backward")

    def backward_ended(self):
        self.calls.append("backward ended")

    def step_begins(self):
        self.calls.append("step")

    def step_ended(self):
        self.calls.append("step ended")

    def failed(self, error):
        self.calls.append(type(error).__name__)


PASS: list[Any] = [("forward", 1, []), "forward ended", "backward", "backward ended"]


@pytest.fixture
def heard():
    heard = Heard()

    def found(module):
        heard.roots.append(module)
        return heard

    before = torch.nn.Module.__call__, torch.autograd.backward
    hooks = LoopHooks(found)
    hooks.install()
    yield heard
    hooks.restore()
    hooks.restore()
    assert (torch.nn.Module.__call__, torch.autograd.backward) == before


def test_accumulation_is_several_passes_and_one_step(heard):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters())
    criterion = torch.nn.MSELoss()
    for _ in range(2):
        criterion(model(torch.ones(2, 4)), torch.ones(2, 1)).backward()
    optimizer.step()
    assert heard.calls == [*PASS, *PASS, "step", "step ended"]
    assert heard.roots == [model]


def test_what_is_not_trained_is_no_training(heard):
    teacher = torch.nn.Linear(4, 4).requires_grad_(requires_grad=False)
    student = torch.nn.Linear(4, 4)
    with torch.no_grad():
        student(torch.ones(1, 4))
    student.eval()(torch.ones(1, 4))
    student.train()
    student(teacher(torch.ones(1, 4))).sum().backward()
    assert (heard.roots, heard.calls) == ([student], PASS)


def test_checkpointing_that_goes_back_within_a_backward_pass_is_one_pass(heard):
    from torch.utils.checkpoint import checkpoint

    model = torch.nn.Linear(4, 4)
    inner = torch.nn.Linear(4, 4)
    out = model(torch.ones(1, 4))
    checkpoint(inner, out, use_reentrant=True).sum().backward()
    assert heard.calls == PASS


def test_a_failure_is_heard_and_goes_on(heard):
    model = torch.nn.Linear(4, 4)
    with pytest.raises(RuntimeError):
        model(torch.ones(1, 3))
    assert heard.calls == [("forward", 1, []), "RuntimeError"]


class Doubled(torch.nn.Module):
    """A module of somebody's own around one of torch's."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.inner(x) * 2


@pytest.mark.parametrize(("own", "graphs"), [(False, 0), (True, 1)])
def test_a_module_compiled_in_place_is_compiled_as_far_as_torch_compiles_it_and_no_more(
    heard, monkeypatch, own, graphs
):
    """Of code that is torch's own torch compiles nothing there: a bare Sequential stays as it is."""
    convert_frame: Any = importlib.import_module(MODULE)
    monkeypatch.setattr(convert_frame.CatchErrorsWrapper, "__call__", convert_frame.CatchErrorsWrapper.__call__)
    asked, made = [], []
    hear_compiling(convert_frame, lambda: asked.append(True))

    def backend(graph, _inputs):
        made.append(graph)
        return graph

    torch.compiler.reset()
    model = Doubled() if own else torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.GELU())
    model.compile(backend=backend)
    model(torch.ones(1, 2)).sum().backward()
    torch.compiler.reset()
    assert heard.calls == PASS
    assert (len(made), bool(asked)) == (graphs, own)
