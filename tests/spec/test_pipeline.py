"""How blocks are divided among the stages of a pipeline."""

from __future__ import annotations

from itertools import combinations

import pytest

from zerobench.spec.model import ModelSpec
from zerobench.spec.pipeline import divide_blocks, why_not_divided
from zerobench.spec.trial import TrialSpec


@pytest.mark.parametrize("num_stages", range(1, 13))
def test_every_block_is_in_one_stage_and_every_stage_has_one(num_stages):
    stages = divide_blocks([5] * 12, 7, 3, num_stages)
    assert [block for stage in stages for block in stage] == list(range(12))
    assert all(stages)
    assert len(stages) == num_stages


@pytest.mark.parametrize(("first", "last"), [(0, 0), (30, 30), (25, 0), (0, 37), (500, 500), (11, 12)])
@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_no_other_division_of_equal_blocks_has_a_smaller_largest_stage(first, last, num_stages):
    def largest(ends):
        sizes = [10 * (end - begin) for begin, end in zip([0, *ends], [*ends, 9], strict=True)]
        sizes[0] += first
        sizes[-1] += last
        return max(sizes)

    ours = divide_blocks([10] * 9, first, last, num_stages)
    assert largest([stage.stop for stage in ours][:-1]) == min(map(largest, combinations(range(1, 9), num_stages - 1)))


def test_unequal_blocks_are_divided_by_their_size_and_not_by_their_number():
    assert divide_blocks([100, 10, 10, 10, 10, 60], 0, 0, 2) == [range(1), range(1, 6)]


def test_of_equal_divisions_the_earlier_stages_have_more_blocks():
    assert divide_blocks([1, 1, 1], 0, 0, 2) == [range(2), range(2, 3)]


def test_a_hundred_and_twenty_six_blocks_over_sixty_three_stages_are_two_each():
    assert {len(stage) for stage in divide_blocks([7] * 126, 0, 0, 63)} == {2}


@pytest.mark.parametrize("num_stages", [0, 4])
def test_more_stages_than_blocks_and_none_are_an_error(num_stages):
    with pytest.raises(ValueError, match=f"3 blocks cannot be divided among {num_stages} stages"):
        divide_blocks([1, 1, 1], 0, 0, num_stages)


def test_a_model_is_refused_with_the_reason():
    def why(num_stages: int, **config: object) -> str | None:
        model = ModelSpec(name="m", hf_config={"model_type": "llama", "num_hidden_layers": 3, **config})
        return why_not_divided(TrialSpec(model=model, strategy="pipeline"), num_stages)

    assert why(3) is None
    assert "its 3 blocks cannot be divided among 4 stages" in (why(4) or "")
    assert "a model of type bloom" in (why(2, model_type="bloom") or "")
