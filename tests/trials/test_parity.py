"""In fp32 every exact strategy takes the same steps as one process on the same global batch; compressed ones do not.

With AdamW here; with SGD, at whose step a gradient of another size shows, in tests/rank/training/test_batch_ramp.py.
"""

import pytest
import torch

from tests.conftest import memory_row
from tests.tools.at_least_one import at_least_one
from tests.tools.rank_memory import apart, moved_bytes, unnamed
from zerobench.common.vocabulary import Category, Phase, Status
from zerobench.config.derived.pipeline_steps import pipeline_bytes_per_step
from zerobench.config.trial.trial import Compression
from zerobench.rank.training.data import micro_batches
from zerobench.report.figures.parity import ParityJudge

SWEEP = """
name: parity
axes:
  model: {family: llama, name: tiny, num_layers: 2, hidden_size: 64, num_heads: 4, vocab_size: 509,
          max_position_embeddings: 64}
  strategy: [single, ddp, zero0, zero1, zero2, zero3, fsdp, tensor, pipeline]
  pipeline_schedule: deepspeed  # torch's: tests/rank/strategies/test_pipeline.py
  world_size: 2
  micro_batch_size: 2
  gradient_accumulation_steps: 2
  sequence_length: 64
  precision: fp32
  optimizer: adamw
include:
  - {strategy: pipeline, activation_checkpointing: true}
  - {strategy: ddp, compression: [fp16, onebit]}
  - {strategy: ddp, compression: powersgd, bucket_bytes: 4e6}  # all gradients in one bucket
hyperparameters: {learning_rate: 1e-3}
steps: {warmup: 1, timed: 4, memory: 1}
"""


@pytest.fixture(scope="module")
def swept(forked_sweep):
    return forked_sweep(SWEEP)


@pytest.fixture(scope="module")
def exact(swept):
    """The trials of several ranks that compress nothing."""
    trials = [trial for trial in swept.trials(compression=Compression.NONE) if trial.spec.strategy != "single"]
    assert len(trials) == 9
    return trials


def test_losses_agree_with_the_single_process_to_5e_6(swept, exact):
    assert {t.record.status for t in swept.run.trials()} == {Status.COMPLETED}
    reference = swept.trial(strategy="single").ranks[0].losses
    assert reference[-1] < reference[0] - 0.01  # the model learns, so a wrong update would show
    for trial in exact:
        assert apart(trial.ranks[0].losses, reference) <= 5e-6, trial.spec.trial_id


def test_gradients_are_as_large_in_every_step_as_the_single_processs(swept, exact):
    reference = swept.trial(strategy="single").ranks[0].grad_norms
    assert len(reference) == 8
    for trial in exact:
        for rank in trial.ranks:
            assert rank.grad_norms == pytest.approx(reference, rel=1e-4), trial.spec.trial_id


@pytest.mark.parametrize(
    ("compression", "largest"), [(Compression.FP16, 1e-3), (Compression.ONEBIT, 0.5), (Compression.POWERSGD, 1.0)]
)
def test_compressed_gradients_are_off_by_a_distance_that_is_shown_and_not_judged(swept, compression, largest):
    reference = swept.trial(strategy="single")
    compressed = swept.trial(compression=compression)
    parity = ParityJudge([reference, compressed]).judge(compressed)
    assert parity is not None
    assert 0 < parity.difference < largest
    assert not parity.is_judged
    assert "unjudged" in swept.output


@pytest.mark.parametrize("compression", [Compression.ONEBIT, Compression.POWERSGD])
def test_the_error_that_a_hook_feeds_back_takes_the_bytes_of_all_gradients(swept, compression):
    rank = swept.trial(compression=compression).ranks[0]
    kept = memory_row(rank, Phase.STEP, Category.REDUCE_BUFFERS).live_bytes
    assert kept == pytest.approx(4 * rank.parameters.total, rel=0.2)  # PowerSGD keeps its factors too


def test_ddps_gradients_are_counted_once_and_stand_in_their_buckets_all_the_time(swept):
    rank = swept.trial(strategy="ddp", compression=Compression.NONE).ranks[0]
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.STEP):
        assert memory_row(rank, phase, Category.GRADIENTS).live_bytes == 4 * rank.parameters.total, phase
    assert Category.REDUCE_BUFFERS not in {row.category for row in rank.memory if row.live_bytes}
    assert rank.effective_config["ddp"]["gradient_as_bucket_view"]


def test_every_rank_of_ddp_is_fed_its_own_share_of_the_global_batch(swept):
    spec = swept.trial(strategy="ddp", compression=Compression.NONE).spec
    whole = [batch for rank in range(2) for batch in micro_batches(spec, rank, 1, 509)]
    alone = list(micro_batches(swept.trial(strategy="single").spec, 0, 1, 509))
    samples = [sorted(row for batch in batches for row in batch.tolist()) for batches in (whole, alone)]
    assert samples[0] == samples[1]


def test_ranks_that_divide_the_model_are_all_fed_the_whole_global_batch(swept):
    spec = swept.trial(strategy="tensor").spec
    alone = torch.stack(list(micro_batches(swept.trial(strategy="single").spec, 0, 1, 509)))
    for rank in range(2):
        assert torch.equal(torch.stack(list(micro_batches(spec, rank, 1, 509))), alone)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_each_stage_of_deepspeeds_pipeline_holds_its_own_and_every_byte_of_it_has_a_name(swept, checkpointing):
    ranks = swept.trial(strategy="pipeline", activation_checkpointing=checkpointing).ranks
    own = [rank.effective_config["pipeline"]["parameters"] for rank in ranks]
    assert sum(own) == ranks[0].parameters.total == ranks[1].parameters.total
    for rank, parameters in zip(ranks, own, strict=True):
        for category, phase in ((Category.PARAMETERS, Phase.FORWARD), (Category.GRADIENTS, Phase.BACKWARD)):
            assert memory_row(rank, phase, category).live_bytes == 4 * parameters, (rank.rank, category)
        assert unnamed(rank) == [], rank.notes


@pytest.mark.parametrize("checkpointing", [False, True])
def test_deepspeeds_pipeline_passes_hidden_states_and_gradients_once_and_tells_how_long_it_waits(swept, checkpointing):
    trial = swept.trial(strategy="pipeline", activation_checkpointing=checkpointing)
    for rank in at_least_one(trial.ranks):
        assert moved_bytes(rank, "send", "recv") == pipeline_bytes_per_step(trial.spec, rank.rank)
        assert all(0 < time.wait_s < time.step_s for time in rank.step_times)
