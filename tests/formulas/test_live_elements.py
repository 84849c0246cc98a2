"""What stage 3 keeps gathered at forward's end is what DeepSpeed's coordinator keeps in a simulated trial."""

from __future__ import annotations

import pytest

from benchmarks.prediction.simulated import gpu_trial, simulate
from zerobench.formulas import formula_record
from zerobench.records import Category, Phase, Place, RankRecord, StepKind
from zerobench.spec.presets import resolve_model
from zerobench.spec.tensors import parameter_tensors
from zerobench.spec.trial import Evidence

MODEL = resolve_model(
    {"name": "any", "family": "gpt2", "num_layers": 6, "hidden_size": 256, "num_heads": 4, "vocab_size": 2003}
)
ALL = sum(parameter_tensors(MODEL))
LIMITS = [(0, 3 * ALL, ALL), (0, 0, 2 * ALL), (ALL // 10, 0, ALL), (ALL // 10, 2 * ALL, 0), (ALL // 10, 0, 2 * ALL)]
"""Elements fetched ahead, those that may be live, and the distance of reuse."""


def at_end(rank: RankRecord) -> int:
    """Bytes of gathered parameters at the end of a steady step's forward pass."""
    where = (StepKind.STEADY, Phase.FORWARD, Place.DEVICE, Category.GATHERED_PARAMETERS)
    return next(row.live_bytes for row in rank.memory if (row.step, row.phase, row.place, row.category) == where)


def test_what_backward_uses_within_half_the_distance_is_kept_however_few_may_be_live() -> None:
    names = ("stage3_prefetch_bucket_size", "stage3_max_live_parameters", "stage3_max_reuse_distance")
    cells = []
    for limits in LIMITS:
        keys = {f"zero_optimization.{name}": limit for name, limit in zip(names, limits, strict=True)}
        keys["zero_optimization.stage3_param_persistence_threshold"] = 0
        cells.append(gpu_trial(MODEL, 3, 8, activation_checkpointing=False, sequence_length=32, ds_config=keys))
    for limits, cell, simulated in zip(LIMITS, cells, simulate(cells), strict=True):
        found = formula_record(cell.model_copy(update={"evidence": Evidence.FORMULA}))
        # tensors are kept whole, and the tied head once more while it is prefetched
        assert at_end(found) == pytest.approx(at_end(simulated), rel=0.15), limits
