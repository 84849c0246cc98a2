"""In fp32 every stage takes the same steps as one process on the same global batch."""

from __future__ import annotations

import pytest

from zerobench.records import Status

SWEEP = """
name: parity
axes:
  model: {{family: {family}, name: tiny, num_layers: 2, hidden_size: 64, num_heads: 4, vocab_size: 509,
          max_position_embeddings: 64}}
  strategy: [single, zero0, zero1, zero2, zero3]
  world_size: 2
  micro_batch_size: 2
  gradient_accumulation_steps: 2
  sequence_length: 64
  precision: fp32
  optimizer: {optimizer}
  activation_checkpointing: {checkpointing}
hyperparameters: {{learning_rate: {rate}}}
steps: {{warmup: 1, timed: 4, memory: 1}}
"""


@pytest.mark.parametrize(
    ("family", "optimizer", "rate", "checkpointing"),
    [("llama", "adamw", 1e-3, "false"), ("llama", "sgd", 0.1, "true")],
)
def test_losses_agree_with_the_single_process_to_5e_6(own_sweep, family, optimizer, rate, checkpointing):
    swept = own_sweep(SWEEP.format(family=family, optimizer=optimizer, rate=rate, checkpointing=checkpointing))
    assert {t.record.status for t in swept.run.trials()} == {Status.COMPLETED}
    reference = swept.trial(strategy="single").ranks[0].losses
    assert reference[-1] < reference[0] - 0.01  # the model learns, so a wrong update would show
    for stage in range(4):
        losses = swept.trial(strategy=f"zero{stage}").ranks[0].losses
        assert max(abs(a - b) for a, b in zip(losses, reference, strict=True)) <= 5e-6, stage
