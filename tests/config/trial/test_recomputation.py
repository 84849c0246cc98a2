"""Which blocks are run again, how that is read, and how it is named."""

import pytest

from zerobench.common.errors import UserError
from zerobench.config.axes.axes import read_axis
from zerobench.config.trial.recomputation import (
    attention_again,
    checkpointing_name,
    checkpointing_sentence,
    recomputed_blocks,
)


def test_blocks_are_counted_from_the_first_on() -> None:
    assert [recomputed_blocks(asked, 7) for asked in (False, True, "ops", "every-2", "every-3")] == [0, 7, 7, 4, 3]
    assert [attention_again(asked, 7) for asked in (False, True, "ops", "every-2", "every-3")] == [0, 7, 0, 4, 3]


def test_what_was_read_before_is_read_as_before_and_the_rest_is_refused_with_the_choices() -> None:
    read = [False, True, "every-2", {"every": 4}, "every-02", "ops"]
    assert read_axis("activation_checkpointing", read, "axes") == [False, True, "every-2", "every-4", "every-2", "ops"]
    for wrong in ("every-1", "every-x", {"each": 2}, "op", None, 1, {"every": True}):
        with pytest.raises(UserError, match=r"activation_checkpointing: .*choices: true, false, ops, every-N"):
            read_axis("activation_checkpointing", wrong, "axes")


def test_each_way_has_its_own_name_and_sentence() -> None:
    ways = (False, True, "every-3", "ops")
    assert [checkpointing_name(asked) for asked in ways] == ["", "ckpt", "ckpt=every-3", "ckpt=ops"]
    assert [checkpointing_sentence(asked).removeprefix("activation checkpointing ") for asked in ways] == [
        "off",
        "on",
        "of one of 3 blocks",
        "by operation",
    ]
