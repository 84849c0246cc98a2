"""The words of the terms that DeepSpeed's formulas make of a setting, which explanations show."""

import pytest

from zerobench.common.vocabulary import Category
from zerobench.config.deepspeed.case import Case
from zerobench.config.trial.optimizers import Optimizer
from zerobench.estimate.memory.deepspeed.setting import Setting, outline


def setting(world_size: int) -> Setting:
    return outline(Case({"zero_optimization": {"stage": 1}}, world_size, num_params=1001), Optimizer.SGD)


@pytest.mark.parametrize(
    ("world_size", "elements", "what", "terms"),
    [
        (1, 1002, "", [(4004, "4 bytes x 1,001 parameters"), (4, "padding of the partition")]),
        (1, 1001, "a copy", [(4004, "a copy: 4 bytes x 1,001 parameters")]),
        (4, 252, "", [(1001, "4 bytes x 1,001 parameters / 4 ranks"), (7, "padding of the partition")]),
        (
            4,
            252,
            "a copy",
            [(1001, "a copy: 4 bytes x 1,001 parameters / 4 ranks"), (7, "a copy: padding of the part")],
        ),
        (4, 100, "", [(400, "the groups updated so far: 4 bytes x 100 elements")]),
        (4, 100, "a part", [(400, "a part: 4 bytes x 100 elements")]),
    ],
)
def test_a_share_is_told_by_all_parameters_the_ranks_and_the_padding(
    world_size: int, elements: int, what: str, terms: list[tuple[int, str]]
) -> None:
    held = setting(world_size).share(Category.GRADIENTS, 4, elements, what).terms
    assert [(term.nbytes, term.words[: len(words)]) for term, (_, words) in zip(held, terms, strict=True)] == terms


@pytest.mark.parametrize(
    ("is_double", "told"),
    [
        (False, (2_000_000_000, "reduce_bucket_size 5e8 x 4 bytes")),
        (True, (4_000_000_000, "reduce_bucket_size 5e8 x 4 bytes x 2 (overlap_comm)")),
    ],
)
def test_a_bucket_is_told_by_its_elements_and_twice_where_reducing_overlaps(
    *, is_double: bool, told: tuple[int, str]
) -> None:
    (term,) = setting(2).bucket("engine.py", is_double=is_double).terms
    assert (term.nbytes, term.words) == told


def test_an_outline_is_of_the_first_rank_in_the_pieces_that_are_updated_at_a_time() -> None:
    case = Case({"zero_optimization": {"stage": 3, "sub_group_size": 400}}, 2, num_params=1001)
    assert (outline(case, Optimizer.SGD).rank, outline(case, Optimizer.SGD).tensors) == (0, (400, 400, 201))
    assert setting(2).tensors == (1001,)
