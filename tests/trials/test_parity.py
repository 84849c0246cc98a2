"""In fp32 every exact strategy takes the same steps as one process on the same global batch; compressed ones do not."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import memory_row
from zerobench.formulas.pipeline import pipeline_bytes_per_step
from zerobench.records import Category, Phase, Status
from zerobench.report.parity import ParityJudge
from zerobench.spec.trial import Compression
from zerobench.worker.data import micro_batches

SWEEP = """
name: parity
axes:
  model: {{family: {family}, name: tiny, num_layers: 2, hidden_size: 64, num_heads: 4, vocab_size: 509,
          max_position_embeddings: 64}}
  strategy: [single, ddp, zero0, zero1, zero2, zero3, fsdp, tensor, pipeline]
  pipeline_schedule: deepspeed  # torch's: tests/worker/test_pipeline.py
  world_size: 2
  micro_batch_size: 2
  gradient_accumulation_steps: 2
  sequence_length: 64
  precision: fp32
  optimizer: {optimizer}
  activation_checkpointing: {checkpointing}
{include}
hyperparameters: {{learning_rate: {rate}}}
steps: {{warmup: 1, timed: 4, memory: 1}}
"""
COMPRESSED = """include:
  - {strategy: ddp, compression: [fp16, onebit]}
  - {strategy: ddp, compression: powersgd, bucket_bytes: 4e6}  # all gradients in one bucket
"""
EXACT = ("ddp", "zero0", "zero1", "zero2", "zero3", "fsdp", "tensor", "pipeline")


@pytest.fixture(scope="module")
def with_adamw(forked_sweep):
    return forked_sweep(
        SWEEP.format(family="llama", optimizer="adamw", rate=1e-3, checkpointing="false", include=COMPRESSED)
    )


@pytest.fixture(scope="module")
def with_sgd(forked_sweep):
    return forked_sweep(SWEEP.format(family="llama", optimizer="sgd", rate=0.1, checkpointing="true", include=""))


@pytest.fixture(params=["with_adamw", "with_sgd"])
def swept(request):
    return request.getfixturevalue(request.param)


def test_losses_agree_with_the_single_process_to_5e_6(swept):
    assert {t.record.status for t in swept.run.trials()} == {Status.COMPLETED}
    reference = swept.trial(strategy="single").ranks[0].losses
    assert reference[-1] < reference[0] - 0.01  # the model learns, so a wrong update would show
    for strategy in EXACT:
        losses = swept.trial(strategy=strategy, compression=Compression.NONE).ranks[0].losses
        assert max(abs(a - b) for a, b in zip(losses, reference, strict=True)) <= 5e-6, strategy


def test_gradients_are_as_large_in_every_step_as_the_single_processs(swept):
    reference = swept.trial(strategy="single").ranks[0].grad_norms
    assert len(reference) == 8
    for strategy in EXACT:
        for rank in swept.trial(strategy=strategy, compression=Compression.NONE).ranks:
            assert rank.grad_norms == pytest.approx(reference, rel=1e-4), strategy


@pytest.mark.parametrize(
    ("compression", "largest"), [(Compression.FP16, 1e-3), (Compression.ONEBIT, 0.5), (Compression.POWERSGD, 1.0)]
)
def test_compressed_gradients_are_off_by_a_distance_that_is_shown_and_not_judged(with_adamw, compression, largest):
    reference = with_adamw.trial(strategy="single")
    compressed = with_adamw.trial(compression=compression)
    parity = ParityJudge([reference, compressed]).judge(compressed)
    assert parity is not None
    assert 0 < parity.difference < largest
    assert not parity.is_judged
    assert "unjudged" in with_adamw.output


@pytest.mark.parametrize("compression", [Compression.ONEBIT, Compression.POWERSGD])
def test_the_error_that_a_hook_feeds_back_takes_the_bytes_of_all_gradients(with_adamw, compression):
    rank = with_adamw.trial(compression=compression).ranks[0]
    kept = memory_row(rank, Phase.STEP, Category.REDUCE_BUFFERS).live_bytes
    assert kept == pytest.approx(4 * rank.parameters.total, rel=0.2)  # PowerSGD keeps its factors too


def test_ddps_gradients_are_counted_once_and_stand_in_their_buckets_all_the_time(with_adamw):
    rank = with_adamw.trial(strategy="ddp", compression=Compression.NONE).ranks[0]
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.STEP):
        assert memory_row(rank, phase, Category.GRADIENTS).live_bytes == 4 * rank.parameters.total, phase
    assert Category.REDUCE_BUFFERS not in {row.category for row in rank.memory if row.live_bytes}
    assert rank.effective_config["ddp"]["gradient_as_bucket_view"]


def test_every_rank_of_ddp_is_fed_its_own_share_of_the_global_batch(with_adamw):
    spec = with_adamw.trial(strategy="ddp", compression=Compression.NONE).spec
    whole = [batch for rank in range(2) for batch in micro_batches(spec, rank, 1, 509)]
    alone = list(micro_batches(with_adamw.trial(strategy="single").spec, 0, 1, 509))
    samples = [sorted(row for batch in batches for row in batch.tolist()) for batches in (whole, alone)]
    assert samples[0] == samples[1]


def test_ranks_that_divide_the_model_are_all_fed_the_whole_global_batch(with_adamw):
    spec = with_adamw.trial(strategy="tensor").spec
    alone = torch.stack(list(micro_batches(with_adamw.trial(strategy="single").spec, 0, 1, 509)))
    for rank in range(2):
        assert torch.equal(torch.stack(list(micro_batches(spec, rank, 1, 509))), alone)


def test_each_stage_of_deepspeeds_pipeline_holds_its_own_and_every_byte_of_it_has_a_name(swept):
    ranks = swept.trial(strategy="pipeline").ranks
    own = [rank.effective_config["pipeline"]["parameters"] for rank in ranks]
    assert sum(own) == ranks[0].parameters.total == ranks[1].parameters.total
    for rank, parameters in zip(ranks, own, strict=True):
        for category, phase in ((Category.PARAMETERS, Phase.FORWARD), (Category.GRADIENTS, Phase.BACKWARD)):
            assert memory_row(rank, phase, category).live_bytes == 4 * parameters, (rank.rank, category)
        for row in rank.memory:
            if row.category is Category.UNATTRIBUTED:
                whole = memory_row(rank, row.phase, Category.TOTAL, step=row.step, place=row.place).at_peak_bytes or 0
                assert abs(row.at_peak_bytes or 0) <= max(0.01 * whole, 4096), (rank.rank, row, rank.notes)


def test_deepspeeds_pipeline_passes_hidden_states_and_gradients_once_and_tells_how_long_it_waits(swept):
    trial = swept.trial(strategy="pipeline")
    for rank in trial.ranks:
        passed = [
            row.message_bytes for row in rank.collectives if row.step == "steady" and row.kind in {"send", "recv"}
        ]
        assert sum(passed) == pipeline_bytes_per_step(trial.spec, rank.rank)
        assert all(0 < time.wait_s < time.step_s for time in rank.step_times)
