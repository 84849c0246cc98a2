"""The lower bound of host memory under offload is what the simulation of a GPU takes, page-locked and rounded."""

import pytest

from tests.rank.real_ranks import RunTrial
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.derived.host_memory import PROCESS_BYTES, host_state_bytes
from zerobench.config.derived.machine import Accelerator
from zerobench.config.models.presets import resolve_model
from zerobench.config.models.tensors import parameter_tensors
from zerobench.config.trial.allocator import page_locked_bytes
from zerobench.config.trial.trial import TrialSpec

MODEL = resolve_model("llama-20m")
TENSORS = parameter_tensors(MODEL)


def offloading(strategy: str, num_ranks: int) -> TrialSpec:
    work = {"strategy": strategy, "gpus_per_node": num_ranks, "precision": "bf16", "sequence_length": 64}
    how = {"offload_optimizer": "cpu", "optimizer": "cpu_adam", "evidence": "simulated"}
    predicted = {"prediction": {"gpu": "h200"}, "ds_config": {"zero_optimization.reduce_bucket_size": 10**7}}
    return TrialSpec.model_validate({"model": MODEL, **work, **how, **predicted})


@pytest.mark.parametrize(("strategy", "num_ranks"), [("zero1", 1), ("zero2", 4), ("zero3", 1), ("zero3", 4)])
def test_the_bound_is_what_a_simulated_rank_holds_but_for_one_tensor(
    ran: RunTrial, strategy: str, num_ranks: int
) -> None:
    trial = offloading(strategy, num_ranks)
    bound = host_state_bytes(trial, sum(TENSORS), Accelerator.CUDA) // num_ranks - PROCESS_BYTES
    wanted = (StepKind.STEADY, Phase.STEP, Place.HOST, Category.TOTAL)
    [total] = [row for row in ran(trial)[0].memory if (row.step, row.phase, row.place, row.category) == wanted]
    # Stages 1 and 2 page-lock room for the largest gradient too (stage_1_and_2.py, temp_grad_buffer_for_cpu_offload).
    beside = 0 if strategy == "zero3" else page_locked_bytes(2 * max(TENSORS))
    assert bound + beside == pytest.approx(total.live_bytes, rel=0.002)
    assert bound <= total.live_bytes * 1.002
