"""How names, sentences and columns write what was asked for."""

from typing import Any

import pytest

from tests.report.sample_run import spec
from zerobench.config.axes.axis_words import (
    checkpoint_name,
    evidence_text,
    offload_name,
    offload_sentence,
    plain_value,
    ranks_name,
    ranks_sentence,
    unusual,
)
from zerobench.config.trial.trial import Precision


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (None, ""),
        ({"every_steps": 4}, "save4"),
        ({"every_steps": 4, "resume_world_size": 1}, "save4 to1"),
        ({"every_steps": 4, "fault": {"rank": 1, "step": 6}}, "save4 kill=1@6"),
    ],
)
def test_a_checkpoint_is_named_by_its_steps_its_ranks_and_its_fault(asked: Any, name: str) -> None:
    assert checkpoint_name(spec("zero1", checkpoint=asked)) == name


def test_what_is_offloaded_is_named_with_its_place_and_what_is_not_is_left_out() -> None:
    states = spec("zero3", offload_optimizer="cpu")
    both = spec("zero3", offload_optimizer="nvme", offload_param="cpu")
    assert [offload_name(one) for one in (spec("zero1"), states, both)] == ["", "opt=cpu", "opt=nvme param=cpu"]
    assert [offload_sentence(one) for one in (spec("zero1"), states, both)] == [
        "no offload",
        "optimizer states offloaded to cpu",
        "optimizer states offloaded to nvme and parameters offloaded to cpu",
    ]


@pytest.mark.parametrize(
    ("nodes", "gpus", "name", "words"),
    [(1, 1, "n1", "1 rank"), (1, 2, "n2", "2 ranks"), (2, 4, "n2x4", "8 ranks on 2 nodes")],
)
def test_ranks_are_counted_and_their_nodes_where_there_are_several(
    nodes: int, gpus: int, name: str, words: str
) -> None:
    asked = spec("zero1", num_nodes=nodes, gpus_per_node=gpus)
    assert (ranks_name(asked), ranks_sentence(asked)) == (name, words)


def test_evidence_is_said_with_its_gpu_and_rank() -> None:
    assert evidence_text(spec("zero1", gpus_per_node=8, evidence="solo", prediction={"rank": 7})) == "solo rank7"
    for gpu, which in ({"gpu": "H200 SXM"}, ""), ({"gpu": "H200 SXM", "all_ranks": True}, " all ranks"):
        assert evidence_text(spec("zero1", evidence="emulated", prediction=gpu)) == f"emulated on H200 SXM{which}"


def test_a_column_has_texts_integers_and_booleans_and_else_the_text_of_a_value() -> None:
    values = [None, True, 3, "a", Precision.BF16, 0.5]
    found = [plain_value(value) for value in values]
    assert found == [None, True, 3, "a", "bf16", "0.5"]
    assert [type(value) for value in found] == [type(None), bool, int, str, str, str]


def test_what_is_unusual_is_said_and_a_usual_value_only_where_it_is_asked_for() -> None:
    label = unusual("precision", str, str)
    assert (
        label.short(spec("zero1", precision="bf16")),
        label.short(spec("zero1", precision="fp32")),
        label.always,
    ) == ("", "fp32", False)
