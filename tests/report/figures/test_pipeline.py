"""Each stage of a pipeline has a row of its own, with the bubble that was measured beside the ideal one."""

import pytest

from tests.report.predicted_trial import collective
from tests.report.sample_run import SampleTrial, completed_trial, spec, trial_record
from zerobench.common.vocabulary import Phase
from zerobench.config.derived.pipeline_steps import pipeline_bytes_per_step
from zerobench.records.records import RankRecord
from zerobench.report.figures.pipeline import stages

ASKED = spec("pipeline", gpus_per_node=2, gradient_accumulation_steps=2)
PASSED = pipeline_bytes_per_step(ASKED, 0)


def stage(rank: RankRecord) -> RankRecord:
    """The rank as a stage of two."""
    part = {"blocks": [4 * rank.rank, 4 * rank.rank + 4], "parameters": 1000 + rank.rank, "micro_batches_in_flight": 2}
    times = [time.model_copy(update={"wait_s": time.step_s / 4}) for time in rank.step_times]
    moved = [collective(kind, Phase.FORWARD, PASSED // 2, 2, calls=4) for kind in ("send", "recv")]
    changed = {"effective_config": {"pipeline": part}, "step_times": times, "collectives": moved}
    return rank.model_copy(update={**changed, "trial_id": ASKED.trial_id})


@pytest.fixture(scope="module")
def trial() -> SampleTrial:
    made = completed_trial(spec("zero0", gpus_per_node=2, gradient_accumulation_steps=2))
    return SampleTrial(ASKED, trial_record(ASKED, ranks_reported=2), [stage(rank) for rank in made.ranks])


def test_each_stage_has_its_own_blocks_states_and_bubble(trial: SampleTrial) -> None:
    first, last = stages(trial)
    assert (first.blocks, last.blocks, first.num_params, last.num_params) == ("0-3", "4-7", 1000, 1001)
    assert first.bubble_fraction == pytest.approx(0.25)
    assert first.ideal_fraction == pytest.approx(1 / 5)  # one of four micro-batches and one stage more
    assert first.passed_bytes == first.formula_bytes == PASSED
    assert first.states is not None
    assert first.peak_bytes is not None


def test_a_trial_whose_ranks_are_no_stages_has_none() -> None:
    assert stages(completed_trial(spec("zero1", gpus_per_node=2))) == []


def test_what_was_not_measured_of_a_stage_is_none_and_never_zero(trial: SampleTrial) -> None:
    bare = trial.ranks[0].model_copy(update={"effective_config": {}, "memory": [], "step_times": []})
    [row] = stages(SampleTrial(ASKED, trial.record, [bare]))
    missing = (row.blocks, row.num_params, row.peak_bytes, row.states, row.activations_bytes, row.in_flight)
    assert missing == (None,) * 6
    assert (row.step_s, row.wait_s, row.bubble_fraction) == (None, None, None)
