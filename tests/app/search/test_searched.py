"""The evidence that a search leaves: the decision, all that was tried, and how it was searched."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tools.known import known
from zerobench.app.search.fastest import Cell
from zerobench.app.search.formula import formula_row
from zerobench.app.search.searched import SearchOutcome, figures
from zerobench.config.derived.cluster import Cluster
from zerobench.config.hardware.hardware import find_gpu
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.runner import RunResult
from zerobench.records.folder import RunFolder
from zerobench.report.figures.trial import TrialFigures

CLUSTER = Cluster(known(find_gpu("H100 SXM")), num_nodes=1, gpus_per_node=8)


def row(micro_batch_size: int, step_s: float | None = 1.0, needs: float = 0.5, **fields: Any) -> TrialFigures:
    """A variant whose step takes `step_s` and that needs this share of its GPU."""
    usual = {"model": resolve_model("gpt2-350m"), "strategy": "zero2", "gpus_per_node": 8, "precision": "bf16"}
    spec = TrialSpec.model_validate({**usual, "micro_batch_size": micro_batch_size, "sequence_length": 1024, **fields})
    found = known(formula_row(spec, CLUSTER))
    expected = None if step_s is None else replace(known(found.expected), step_s=step_s, low_s=step_s / 2, high_s=2.0)
    return replace(
        found,
        expected=expected,
        fit=replace(
            found.fit, device=replace(found.fit.device, capacity_bytes=round(known(found.device_needed_bytes) / needs))
        ),
    )


def outcome(*cells: Cell) -> SearchOutcome:
    return SearchOutcome(RunResult(RunFolder(Path("run"))), cells, num_rounds=3)


def cell(*rows: TrialFigures, untried: int = 0, failed: int = 0) -> Cell:
    """Of these the formulas were asked, and `untried` more; `failed` more were tried."""
    tried = {one.spec.config_hash: one for one in rows}
    names = [f"other {number}" for number in range(untried + failed)]
    return Cell({**tried, **dict.fromkeys(names, row(1))}, tried, set(names[:failed]))


def test_what_was_tried_is_listed_with_room_first_and_of_those_the_fastest_first() -> None:
    slow, fast, unknown = row(1, 3.0), row(2, 1.0), row(4, None)
    full, fuller = row(8, 0.5, needs=0.97), row(16, 0.25, needs=1.2)
    listed = outcome(cell(full, slow, fuller), cell(fast, unknown)).document(None)["tried"]
    assert [one["micro_batch_size"] for one in listed] == [4, 2, 1, 16, 8]
    assert [one["has_room"] for one in listed] == [True, True, True, False, False]


def test_what_was_asked_and_what_was_tried_is_counted_over_all_cells() -> None:
    """Variants that failed were tried; those that nobody tried were asked of the formulas alone."""
    found = outcome(cell(row(1), row(2), untried=5, failed=1), cell(row(4), untried=2))
    assert (found.num_variants, found.num_tried) == (11, 4)
    document = found.document(None)
    assert (document["num_variants"], document["num_tried"], document["num_rounds"]) == (11, 4, 3)
    assert found.tried_hashes == {one.spec.config_hash for one in (row(1), row(2), row(4))}


def test_the_best_of_each_cell_is_shown_and_the_fastest_of_all_is_the_best() -> None:
    fast, slow, full = row(2, 1.0), row(1, 3.0), row(8, 0.5, needs=0.99)
    found = outcome(cell(slow, full), cell(fast), cell(untried=1))
    assert found.rows == [slow, fast]
    assert found.best is fast
    assert outcome(cell(full)).rows == [full]  # what comes nearest, where nothing fits
    assert outcome(cell(full)).best is None
    assert outcome(cell()).rows == []


def test_a_variants_figures_are_in_bytes_and_seconds_with_the_axes_that_were_varied() -> None:
    chosen = row(2, 0.5, gradient_accumulation_steps=3, activation_checkpointing=True)
    told = figures(chosen)
    assert told == {
        "strategy": "zero2",
        "offload_optimizer": "none",
        "offload_param": "none",
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 3,
        "activation_checkpointing": True,
        "ds_config": {},
        "evidence": "formula",
        "needed_bytes": chosen.device_needed_bytes,
        "capacity_bytes": chosen.capacity_bytes,
        "host_needed_bytes": chosen.host_needed_bytes,
        "has_room": True,
        "expected_step_s": 0.5,
        "expected_step_interval_s": (0.25, 2.0),
        "expected_tokens_per_s": pytest.approx(2 * 3 * 8 * 1024 / 0.5),
    }
    untimed = figures(row(2, None))
    names = ("expected_step_s", "expected_step_interval_s", "expected_tokens_per_s")
    assert [untimed[name] for name in names] == [None, None, None]


def test_the_document_has_the_decision_and_what_its_time_assumes() -> None:
    chosen = row(2)
    document = outcome(cell(chosen)).document(chosen)
    assert document["chosen"] == figures(chosen)
    assert document["assumptions"] == known(chosen.expected).assumptions
    assert len(document["assumptions"]) > 0
    undecided = outcome(cell(row(2, None))).document(None)
    assert (undecided["chosen"], undecided["assumptions"]) == (None, [])
    assert outcome(cell(row(2, None))).document(row(2, None))["assumptions"] == []
