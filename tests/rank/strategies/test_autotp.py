"""DeepSpeed's AutoTP at stage 3, on real ranks: two groups of two, or one.

The model is built partitioned over all ranks. What AutoTP then cuts, ZeRO divides among the groups, and what it leaves
whole, among all ranks, so that a rank has an equal part of every state.
"""

from typing import Any

import pytest

from tests.rank.real_ranks import RunTrial, Tiny, check_same_steps
from tests.tools.at_least_one import at_least_one
from tests.tools.rank_memory import live_bytes, unnamed
from zerobench.common.vocabulary import Category, Phase, StepKind
from zerobench.config.derived.batch import AUTOTP_SIZE

KEYS = {AUTOTP_SIZE: 2, "zero_optimization.reduce_bucket_size": 10**6}
ON_FOUR: dict[str, Any] = {"gpus_per_node": 4, "gradient_accumulation_steps": 1, "optimizer": "adamw"}
ON_TWO: dict[str, Any] = {"gpus_per_node": 2, "gradient_accumulation_steps": 2, "optimizer": "sgd"}
TINY = Tiny(keys=KEYS, work={"strategy": "zero3"})
spec, alone = TINY.spec, TINY.alone


@pytest.mark.parametrize("fields", [ON_FOUR, ON_TWO], ids=["adamw on 4", "sgd on 2"])
def test_ranks_that_are_cut_and_divided_take_the_steps_of_one_process(ran: RunTrial, fields: dict[str, Any]):
    check_same_steps(ran(spec(**fields)), ran(alone(**fields)))


def test_every_rank_holds_an_equal_part_of_every_state_to_the_byte(ran: RunTrial):
    """A quarter of the elements, of four bytes each."""
    for rank in at_least_one(ran(spec(**ON_FOUR))):
        assert rank.parameters is not None
        assert live_bytes(rank, Category.GRADIENTS, Phase.BACKWARD) == rank.parameters.total
        for category in (Category.PARAMETERS, Category.FIRST_MOMENT, Category.SECOND_MOMENT):
            assert live_bytes(rank, category, Phase.STEP) == rank.parameters.total, category


def test_matrices_are_gathered_from_the_groups_and_the_rest_from_all_ranks(ran: RunTrial):
    [embedding, norms] = 512 * 64, 5 * 64
    matrices = ran(spec(**ON_FOUR))[0].parameters.total - embedding - norms  # type: ignore[union-attr]
    for rank in at_least_one(ran(spec(**ON_FOUR))):
        reduced = {
            row.group_size: row.message_bytes
            for row in rank.collectives
            if (row.step, row.phase, row.kind) == (StepKind.STEADY, Phase.BACKWARD, "reduce_scatter")
        }
        micro_batches = 2  # of each group
        assert reduced == {2: micro_batches * 4 * matrices // 2, 4: micro_batches * 4 * (embedding + norms)}


@pytest.mark.parametrize("fields", [ON_FOUR, ON_TWO], ids=["adamw on 4", "sgd on 2"])
def test_every_byte_at_every_peak_has_a_name(ran: RunTrial, fields: dict[str, Any]):
    for rank in at_least_one(ran(spec(**fields))):
        assert unnamed(rank, share=0) == []
