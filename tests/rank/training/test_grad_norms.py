"""Gradients that are twice too large are seen in every strategy, optimizer and precision, where losses see nothing.

Each trial is right in its first steps and wrong from then on, so that one run shows both: that the norm which a
strategy tells is the single process's, and that it is marked when it is not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.rank.real_ranks import LLAMA, Ranks, RunTrial, Tiny, run_rank_with_fp16, trials_in_forks
from tests.report.sample_run import SampleTrial, trial_record
from zerobench.common.vocabulary import Status
from zerobench.config.derived.batch import AUTOTP_SIZE, micro_batches_of_share
from zerobench.config.trial.optimizers import Optimizer
from zerobench.config.trial.trial import Precision, TrialSpec
from zerobench.rank.training.grad_norms import GradNorms
from zerobench.records.trials import recorded_grad_norms
from zerobench.report.figures.gradient_parity import distance
from zerobench.report.figures.parity import ParityJudge

SMALLER = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
TINY = Tiny(LLAMA | SMALLER | {"vocab_size": 128}, work={"sequence_length": 16, "hyperparameters": {}})
RIGHT_STEPS, ALL_STEPS = 2, 4
ROUNDING = {Precision.FP32: 1e-5, Precision.BF16: 5e-3, Precision.FP16: 5e-3}

Fields = dict[str, Any]
Case = tuple[str, Fields]
HPZ: Fields = {"hpz_partition_size": 2, "gpus_per_node": 4}
GROUPS: Fields = {"mics_shard_size": 2, "gpus_per_node": 4}
AUTOTP: Fields = {"ds_config": {AUTOTP_SIZE: 2}}
OFFLOADED: Fields = {"offload_optimizer": "cpu", "optimizer": "cpu_adam"}
SGD: Fields = {"optimizer": "sgd"}
FUSED: Fields = {"optimizer": "fused_adamw"}
EIGHT_BITS: Fields = {"optimizer": "adamw_8bit"}
LION: Fields = {"optimizer": "lion"}
MUON: Fields = {"optimizer": "muon"}
BF16: Fields = {"precision": "bf16"}
FP16: Fields = {"precision": "fp16"}
DEEPSPEED: Fields = {"pipeline_schedule": "deepspeed"}
GPIPE: Fields = {"pipeline_schedule": "gpipe"}
NONE: Fields = {}
ALIKE = {Optimizer.FUSED_ADAMW: Optimizer.ADAMW, Optimizer.CPU_ADAM: Optimizer.ADAMW}
"""The single process's optimizer that makes the same update."""

EVERY: list[Case] = [
    *((name, NONE) for name in ("ddp", "zero0", "zero1", "zero2", "zero3", "fsdp", "tensor", "pipeline")),
    *(("pipeline", GPIPE), ("pipeline", DEEPSPEED), ("rpc-pipeline", NONE), ("parameter-server", NONE)),
    *(("zero3", HPZ), ("zero3", AUTOTP), ("fsdp", GROUPS)),
    *(("zero0", SGD), ("zero1", OFFLOADED), ("ddp", FUSED), ("pipeline", {**DEEPSPEED, **SGD})),
    *(("zero2", EIGHT_BITS), ("zero3", LION), ("zero1", {**BF16, **LION, "offload_optimizer": "cpu"}), ("fsdp", LION)),
    *(("ddp", EIGHT_BITS), ("ddp", MUON), ("zero0", MUON)),
    *(("zero0", BF16), ("zero2", {**BF16, **FUSED}), ("zero3", {**BF16, **OFFLOADED}), ("fsdp", {**BF16, **SGD})),
    *(("pipeline", {**BF16, **DEEPSPEED}), ("tensor", {**BF16, **SGD}), ("rpc-pipeline", BF16)),
    *(("zero0", FP16), ("zero0", {**FP16, **SGD}), ("zero1", {**FP16, **OFFLOADED}), ("zero3", {**FP16, **SGD})),
    *(("ddp", {**FP16, **SGD}), ("pipeline", {**FP16, **GPIPE}), ("parameter-server", FP16)),
]
"""Each way of training, each optimizer under each engine that has one of its own way to the norm, each precision."""


def name_of(case: Case) -> str:
    """`zero3 bf16 cpu cpu_adam`."""
    return " ".join([case[0], *(str(value) for value in case[1].values())])


def spec(strategy: str, **fields: Any) -> TrialSpec:
    """Four micro-batches a step, over two ranks but for the single process."""
    ranks = 1 if strategy == "single" else fields.get("gpus_per_node", 2)
    return TINY.spec(strategy=strategy, **{"gpus_per_node": ranks, "gradient_accumulation_steps": 4 // ranks, **fields})


class _Doubled(torch.autograd.Function):
    """The loss as it is, and twice its gradient."""

    @staticmethod
    def forward(_ctx: Any, loss: torch.Tensor) -> torch.Tensor:
        return loss.clone()

    @staticmethod
    def backward(_ctx: Any, *gradients: Any) -> Any:
        return 2 * gradients[0]


def run_wrong(asked: str, folder: str, rank: int, port: int) -> str:
    """A rank whose gradients come to be twice what they should be, at the loss that every strategy comes through."""
    from transformers.loss.loss_utils import LOSS_MAPPING

    right, calls = LOSS_MAPPING["ForCausalLM"], itertools.count()
    right_calls = RIGHT_STEPS * micro_batches_of_share(TrialSpec.model_validate_json(asked))

    def loss(*args: Any, **kwargs: Any) -> torch.Tensor:
        found: torch.Tensor = right(*args, **kwargs)
        wrong: torch.Tensor = _Doubled.apply(found)
        return found if next(calls) < right_calls else wrong

    LOSS_MAPPING["ForCausalLM"] = loss
    return run_rank_with_fp16(asked, folder, rank, port)


@pytest.fixture(scope="module")
def ran(in_fork: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> RunTrial:
    return trials_in_forks(in_fork, tmp_path_factory, run_rank_with_fp16)


@pytest.fixture(scope="module")
def ran_wrong(in_fork: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> RunTrial:
    return trials_in_forks(in_fork, tmp_path_factory, run_wrong)


def trial_of(asked: TrialSpec, ranks: Ranks) -> SampleTrial:
    assert {rank.status for rank in ranks} == {Status.COMPLETED}
    return SampleTrial(asked, trial_record(asked), ranks)


@pytest.mark.parametrize("case", EVERY, ids=name_of)
def test_gradients_twice_too_large_are_marked(
    ran: RunTrial, ran_wrong: RunTrial, case: Case, request: pytest.FixtureRequest
):
    if case[0].startswith("zero") and case[1].get("optimizer") in ("cpu_adam", "fused_adamw"):
        request.getfixturevalue("kernels")
    wrong = spec(case[0], **case[1])
    alone = spec("single", precision=wrong.precision, optimizer=ALIKE.get(wrong.optimizer, wrong.optimizer))
    reference, judged = trial_of(alone, ran(alone)), trial_of(wrong, ran_wrong(wrong))
    ours, theirs = recorded_grad_norms(judged), recorded_grad_norms(reference)
    assert len(ours) == len(theirs) == ALL_STEPS
    for right, norm in list(zip(theirs, ours, strict=True))[:RIGHT_STEPS]:
        assert norm is not None
        assert right is not None
        if norm != math.inf:  # of a step that fp16's loss scale left out
            assert distance(norm, right) < ROUNDING[wrong.precision]
    parity = ParityJudge([reference, judged]).judge(judged)
    assert parity is not None
    assert parity.norm_difference == pytest.approx(1, abs=0.2)
    assert not parity.norms_agree
    assert not parity.agrees
    if wrong.precision is Precision.FP32:
        assert parity.losses_agree  # which see nothing of it


def test_a_server_knows_the_norm_and_its_workers_know_none(ran_wrong: RunTrial):
    server, worker = ran_wrong(spec("parameter-server"))
    assert (len(server.grad_norms), worker.grad_norms) == (ALL_STEPS, [])


def test_a_norm_that_deepspeed_is_told_not_to_compute_is_missing_with_its_reason(ran: RunTrial):
    off = {"zero_optimization.compute_grad_norm": False}
    [rank, _] = ran(spec("zero1", ds_config=off, hyperparameters={"gradient_clipping": 0.0}))
    assert rank.grad_norms == []
    assert "gradient norm unknown: zero_optimization.compute_grad_norm is off" in rank.notes


@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
@pytest.mark.parametrize("clipping", [0.0, 1.0])
def test_what_deepspeed_calls_the_norm_under_muon_is_that_of_the_update_and_is_not_told(
    ran: RunTrial, strategy: str, clipping: float
):
    [rank, _] = ran(spec(strategy, **MUON, hyperparameters={"gradient_clipping": clipping}))
    assert rank.grad_norms == []
    assert "gradient norm unknown: DeepSpeed takes the norm of Muon's update" in " ".join(rank.notes)


def test_a_norm_is_not_read_within_a_timed_step():
    norms, norm = GradNorms(clipping=1.0), torch.tensor(3.0)
    norms.begin("timed")
    norms.tell(norm)
    norm.fill_(2.0)
    assert norms.values() == [2.0]


def test_a_rank_alone_of_many_keeps_no_norms_and_explains_nothing():
    norms = GradNorms(are_kept=False)
    norms.begin("warmup")
    norms.tell(3.0)
    assert (norms.values(), norms.notes(), norms.largest) == ([], [], None)
