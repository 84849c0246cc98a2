"""A step of which three micro-batches are played is told as the whole step is."""

from typing import Any

import pytest

from benchmarks.prediction.simulated import TINY, gpu_trial
from tests.tools.kept_simulator import Simulate
from zerobench.common.vocabulary import Category
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import Offload, TrialSpec
from zerobench.records.records import RankRecord

ASKED, PLAYED = 5, 3
LARGE_BYTES = 4096
"""Not norms and flags, which no formula counts."""
NOTHING_KEPT = {
    f"zero_optimization.stage3_{key}": 0
    for key in ("param_persistence_threshold", "max_live_parameters", "max_reuse_distance", "prefetch_bucket_size")
}
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "stage 1": (1, {}),
    "stage 2, offloaded": (2, {"offload_optimizer": Offload.CPU, "optimizer": "cpu_adam"}),
    "stage 3": (3, {}),
    "stage 3, a second gather": (3, {"activation_checkpointing": True, "ds_config": NOTHING_KEPT}),
}


def trials(stage: int, more: dict[str, Any]) -> list[TrialSpec]:
    """One that is played whole, and the same of which three micro-batches are."""
    model = resolve_model(TINY)
    whole = gpu_trial(model, stage, 8, sequence_length=64, gradient_accumulation_steps=ASKED, **more)
    prediction = whole.prediction.model_copy(update={"micro_batches": PLAYED})
    return [whole, whole.model_copy(update={"prediction": prediction})]


@pytest.fixture(scope="module")
def records(simulate: Simulate) -> dict[str, list[RankRecord]]:
    """By case the record of the whole step, then of the short one."""
    found = simulate([trial for stage, more in CASES.values() for trial in trials(stage, more)])
    return {name: found[2 * index : 2 * index + 2] for index, name in enumerate(CASES)}


@pytest.mark.parametrize("name", CASES)
def test_a_short_step_holds_moves_and_computes_what_the_whole_step_does(
    name: str, records: dict[str, list[RankRecord]]
) -> None:
    whole, short = records[name]
    assert short.trial_id == whole.trial_id
    assert short.flops_per_step == whole.flops_per_step
    assert moved(short) == moved(whole)
    told, expected = rows(short), rows(whole)
    assert set(told) == set(expected)
    others = ASKED - PLAYED
    room = {  # token ids, and one number in a block of 512 bytes
        Category.INPUTS: 64 * 8 * others,
        Category.LOGITS_AND_LOSS: 4 * others,
        Category.UNATTRIBUTED: 4 * others,
        Category.ALLOCATOR_ROUNDING: 512 * others,
        Category.TOTAL: (64 * 8 + 512) * others,
    }
    for key, nbytes in expected.items():
        assert abs((told[key] or 0) - (nbytes or 0)) <= room.get(key[3], 0), key
    noted = [note for note in short.notes if "micro-batches" in note]
    assert noted == [f"{PLAYED} of {ASKED} micro-batches of a step played; the others add their inputs and losses"]


def rows(record: RankRecord) -> dict[tuple[str, str, str, Category], int | None]:
    return {(row.step, row.phase, row.place, row.category): row.at_peak_bytes for row in record.memory}


def moved(record: RankRecord) -> dict[tuple[str, ...], int]:
    """Bytes of a steady step's large messages, by phase and kind."""
    steady = [row for row in record.collectives if row.step == "steady" and row.message_bytes > LARGE_BYTES]
    return {(row.phase, row.kind): row.message_bytes for row in steady}
