"""fp16 trains what the single process trains: what DeepSpeed's stage 0 leaves out of it is made up for.

The ranks compute in fp16 on a CPU, which DeepSpeed would refuse where the CPU has no instructions for it and torch does
in software.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.worker import real_ranks
from tests.worker.real_ranks import RunTrial, trials_in_forks
from zerobench.records import Status
from zerobench.spec.model import ModelSpec
from zerobench.spec.trial import TrialSpec

CONFIG: dict[str, Any] = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
CONFIG |= {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 512, "max_position_embeddings": 64}
ROUNDING = 1e-3


def spec(strategy: str, **fields: Any) -> TrialSpec:
    """Two micro-batches a step, and a learning rate at which SGD is seen to move."""
    work = {"strategy": strategy, "sequence_length": 32, "precision": "fp16", "optimizer": "sgd"}
    work |= {"hyperparameters": {"learning_rate": 0.1}, "steps": {"warmup": 1, "timed": 2, "memory": 1}}
    return TrialSpec.model_validate({"model": ModelSpec(name="tiny", hf_config=CONFIG), **work, **fields})


def run_rank(asked: str, folder: str, rank: int, port: int) -> str:
    """The rank of a trial on a CPU that is said to have fp16; called in a process of its own."""
    import torch
    from deepspeed.accelerator import get_accelerator

    kind = type(get_accelerator())
    kind.is_fp16_supported = lambda _self: True
    kind.supported_dtypes = lambda _self: [torch.float, torch.bfloat16, torch.half]
    return real_ranks.run_rank(asked, folder, rank, port)


@pytest.fixture(scope="module")
def ran(in_fork: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> RunTrial:
    def in_fork_with_fp16(_run_rank: Callable[..., Any], *arguments: object) -> Any:
        return in_fork(run_rank, *arguments)

    return trials_in_forks(in_fork_with_fp16, tmp_path_factory)


@pytest.mark.parametrize("strategy", ["zero0", "zero1"])
def test_a_loss_scale_changes_the_rounding_and_not_the_step(ran: RunTrial, strategy: str):
    reference = ran(spec("single", gradient_accumulation_steps=2))[0].losses
    assert reference[-1] < reference[0] - 0.01  # the model learns, so gradients that are too small would show
    for rank in ran(spec(strategy, gpus_per_node=2)):
        assert rank.status is Status.COMPLETED
        assert max(abs(a - b) for a, b in zip(rank.losses, reference, strict=True)) <= ROUNDING
