"""What the allocator holds by formula is what it holds in a simulated trial."""

from __future__ import annotations

import pytest

from benchmarks.prediction.simulated import gpu_trial
from zerobench.formulas import formula_record
from zerobench.spec.presets import resolve_model
from zerobench.spec.trial import Attention, Evidence, TrialSpec


def trial(family: str, stage: int, checkpoints: bool, **axes: object) -> TrialSpec:
    """A model of a shape that no course was recorded of, near the end of an H200."""
    model = resolve_model(
        {"name": "other", "family": family, "num_layers": 4, "hidden_size": 768, "num_heads": 12, "vocab_size": 9001}
    )
    given = {"activation_checkpointing": checkpoints, "sequence_length": 512, "micro_batch_size": 1100} | axes
    return gpu_trial(model, stage, 8, **given)


def test_where_the_device_is_too_small_the_need_is_what_was_held_and_asked_for_at_the_least() -> None:
    record = formula_record(trial("llama", 1, False, micro_batch_size=4000, evidence=Evidence.FORMULA))
    assert max(row.held_bytes for row in record.device_memory) > 150 * 10**9
    assert all(row.alloc_retries == 0 for row in record.device_memory)


@pytest.mark.parametrize(
    "axes",
    [{"attention": Attention.EAGER}, {"activation_checkpointing": "ops"}, {"precision": "fp32"}],
    ids=lambda axes: next(iter(axes)),
)
def test_without_a_course_no_allocator_is_played_and_the_notes_say_what_is_missing(axes: dict[str, object]) -> None:
    record = formula_record(trial("llama", 1, False, evidence=Evidence.FORMULA, **axes))
    assert record.device_memory == []
    assert any("without what the allocator rounds and reserves" in note for note in record.notes)
