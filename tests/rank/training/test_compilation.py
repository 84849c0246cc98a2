"""torch.compile under each strategy: the losses of the model as it is, and what it took is in the record."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.rank.real_ranks import LLAMA, RunTrial, Tiny, check_same_steps, run_rank, trials_in_forks
from zerobench.common.vocabulary import Phase, Status
from zerobench.rank.ledger.failures import describe
from zerobench.rank.ledger.recorder import Marks

CONFIG = LLAMA | {"vocab_size": 500}
TRACED = "aot_eager"
"""A backend that does all that inductor does up to generating code, which takes a C++ compiler half a minute."""
TINY = Tiny(CONFIG, work={"steps": {"warmup": 1, "timed": 1, "memory": 1}})
spec, alone = TINY.spec, TINY.alone


def run_traced(asked: str, folder: str, rank: int, port: int) -> str:
    """A rank whose graphs are traced and not turned into machine code."""
    from zerobench.rank.training import compilation

    compilation.BACKEND = TRACED
    return run_rank(asked, folder, rank, port)


@pytest.fixture(scope="module")
def traced(in_fork: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> RunTrial:
    return trials_in_forks(in_fork, tmp_path_factory, run_traced)


CASES = [
    ("ddp", "model", 2),
    ("zero1", "model", 2),
    ("zero2", "blocks", 2),
    ("fsdp", "blocks", 2),
    ("zero3", "model", 1),  # whose hooks in each module end a graph, which takes seconds to trace
]


@pytest.mark.parametrize(("strategy", "what", "layers"), CASES)
def test_a_compiled_model_takes_the_steps_of_the_model_as_it_is(
    ran: RunTrial, traced: RunTrial, strategy: str, what: str, layers: int
) -> None:
    config = CONFIG | {"num_hidden_layers": layers}
    ranks = traced(spec(strategy=strategy, compile=what, config=config))
    check_same_steps(ranks, ran(alone(config=config)))
    found = ranks[0].compilation
    assert found is not None
    assert found.num_graphs > 0
    assert (found.num_graphs_in_timed_steps, found.backend) == (0, TRACED)


def no_compiler(graph: Any, _inputs: Any) -> Any:
    raise RuntimeError("no compiler to be found")


def test_a_compilation_that_fails_is_told_from_a_crash_of_the_training() -> None:
    doubled = torch.compile(lambda tensor: tensor * 2, backend=no_compiler)
    marks = Marks()
    marks.step_index, marks.phase = 1, Phase.FORWARD
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as raised:
        doubled(torch.ones(2))
    status, failure = describe(raised.value, marks, 0, None)
    assert status is Status.CRASH
    assert failure.message.startswith("torch.compile failed (BackendCompilerFailed) in forward of step 2: ")
    assert failure.evidence == "torch.compile failed with the compiler's exception"


@pytest.mark.slow
def test_machine_code_of_inductor_takes_them_too_beside_a_chunked_loss(ran: RunTrial) -> None:
    [rank] = ran(alone(compile="blocks", cross_entropy="chunked"))
    check_same_steps([rank], ran(alone()))
    assert rank.compilation is not None
    assert rank.compilation.num_graphs == 1
    assert rank.compilation.seconds > 0
    assert any("uncompiled model" in note for note in rank.notes)
