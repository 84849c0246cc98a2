"""An engine's calls are heard on the instance alone, in training alone, and nothing of it stays behind."""

import gc
import weakref

import pytest
import torch

from zerobench.launch.tracking.engine_hooks import EngineHooks


class Engine(torch.nn.Module):
    """What the hooks need of a DeepSpeed engine, accumulating over two micro-steps."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.micro_steps = 0

    def forward(self, x, *, fail=False):
        if fail:
            raise RuntimeError("no")
        return self.layer(x).sum()

    def backward(self, loss, **options):
        loss.backward()
        return "scaled loss"

    def step(self):
        self.micro_steps += 1

    def is_gradient_accumulation_boundary(self):
        return self.micro_steps % 2 == 1


class Heard:
    """Writes down what it hears."""

    def __init__(self):
        self.words = []

    def forward_begins(self, args, kwargs):
        self.words.append(f"forward {len(args)} {sorted(kwargs)}")

    def forward_ended(self, output):
        self.words.append("forward ended")

    def backward_begins(self, loss):
        self.words.append("backward")

    def backward_ended(self):
        self.words.append("backward ended")

    def step_begins(self):
        self.words.append("step")

    def step_ended(self):
        self.words.append("step ended")

    def failed(self, error):
        self.words.append(f"failed {error}")


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def heard(engine):
    listener = Heard()
    EngineHooks(engine, listener).install()
    return listener


MICRO_STEP = ["forward 1 []", "forward ended", "backward", "backward ended"]


def test_micro_steps_are_heard_and_the_step_at_the_end_of_the_accumulation(engine, heard):
    for _ in range(2):
        loss = engine(torch.ones(2))
        assert engine.backward(loss, scale=1) == "scaled loss"
        engine.step()
    assert heard.words == [*MICRO_STEP, *MICRO_STEP, "step", "step ended"]


def test_a_forward_pass_in_evaluation_is_not_heard(engine, heard):
    engine.eval()
    engine(torch.ones(2))
    assert heard.words == []


def test_an_exception_is_heard_and_goes_on_to_the_caller(engine, heard):
    with pytest.raises(RuntimeError, match="no"):
        engine(torch.ones(2), fail=True)
    assert heard.words == ["forward 1 ['fail']", "failed no"]


def test_afterwards_the_instance_is_as_it_was(engine):
    before = dict(vars(engine))
    hooks = EngineHooks(engine, Heard())
    hooks.install()
    hooks.restore()
    hooks.restore()
    assert vars(engine) == before


def test_a_method_that_the_instance_had_of_its_own_is_put_back(engine):
    def own():
        return "own"

    engine.step = own
    engine.micro_steps = 1
    hooks = EngineHooks(engine, Heard())
    hooks.install()
    assert engine.step() == "own"
    hooks.restore()
    assert engine.step is own


def test_what_somebody_wrapped_around_ours_meanwhile_stays(engine):
    hooks = EngineHooks(engine, Heard())
    hooks.install()
    ours = engine.step

    def theirs():
        return ours()

    engine.step = theirs
    hooks.restore()
    assert engine.step is theirs


def test_hooks_keep_no_engine_alive_and_restore_nothing_of_one_that_is_gone():
    engine = Engine()
    hooks = EngineHooks(engine, Heard())
    hooks.install()
    reference = weakref.ref(engine)
    del engine
    gc.collect()  # the instance holds its own methods, wrapped
    assert reference() is None
    hooks.restore()
