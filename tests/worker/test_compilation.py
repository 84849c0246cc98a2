"""torch.compile under each strategy: the losses of the model as it is, and what it took is in the record."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.real_ranks import RunTrial, Tiny, run_rank
from zerobench.ds_config import build_ds_config
from zerobench.folder import TrialFolder
from zerobench.memory.failures import describe
from zerobench.memory.recorder import Marks
from zerobench.records import Phase, RankRecord, Status
from zerobench.running.launcher import free_port
from zerobench.spec.trial import TrialSpec

CONFIG: dict[str, Any] = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 500}
CONFIG |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
TOLERANCE = 5e-6
"""Fused kernels round in other places than the operations one by one; a fault is larger by orders of magnitude."""
TRACED = "aot_eager"
"""A backend that does all that inductor does up to generating code, which takes a C++ compiler half a minute."""
TINY = Tiny(CONFIG, work={"steps": {"warmup": 1, "timed": 1, "memory": 1}})
spec, alone = TINY.spec, TINY.alone


def run_traced(asked: str, folder: str, rank: int, port: int) -> str:
    """A rank whose graphs are traced and not turned into machine code."""
    from zerobench.worker import compilation

    compilation.BACKEND = TRACED
    return run_rank(asked, folder, rank, port)


@pytest.fixture(scope="module")
def traced(in_fork: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> RunTrial:
    def run(trial: TrialSpec) -> list[RankRecord]:
        folder, port = str(tmp_path_factory.mktemp("trial")), free_port()
        if trial.zero_stage is not None:
            TrialFolder(Path(folder)).ds_config.write_text(json.dumps(build_ds_config(trial)), encoding="utf-8")
        with ThreadPoolExecutor() as threads:
            asked = trial.model_dump_json()
            asks = [threads.submit(in_fork, run_traced, asked, folder, r, port) for r in range(trial.world_size)]
            return [RankRecord.model_validate_json(ask.result()) for ask in asks]

    return run


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
    expected = ran(alone(config=config))[0].losses
    rank = traced(spec(strategy=strategy, compile=what, config=config))[0]
    assert max(abs(a - b) for a, b in zip(expected, rank.losses, strict=True)) < TOLERANCE
    assert rank.compilation is not None
    assert rank.compilation.num_graphs > 0
    assert rank.compilation.num_graphs_in_timed_steps == 0
    assert rank.compilation.backend == TRACED


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
    expected = ran(alone())[0].losses
    rank = ran(alone(compile="blocks", cross_entropy="chunked"))[0]
    assert max(abs(a - b) for a, b in zip(expected, rank.losses, strict=True)) < TOLERANCE
    assert rank.compilation is not None
    assert rank.compilation.num_graphs == 1
    assert rank.compilation.seconds > 0
    assert any("uncompiled model" in note for note in rank.notes)
