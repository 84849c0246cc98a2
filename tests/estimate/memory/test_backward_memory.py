"""What lies beside model states within a backward pass: states by hand; peaks as the engines': test_agreement.py."""

from typing import Any

import pytest

from benchmarks.prediction.simulated import gpu_trial
from tests.tools.known import known
from zerobench.common.vocabulary import Category
from zerobench.config.models.presets import resolve_model
from zerobench.config.models.tensors import matrices
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.memory.backward_memory import BackwardMemory, PassState, backward_memory_of
from zerobench.estimate.memory.course import KINDS
from zerobench.estimate.memory.terms.activations import trial_shape
from zerobench.estimate.memory.terms.terms import Bytes

MOMENTS = [(10, 100, 4), (10, 120, 4), (25, 130, 6), (25, 110, 6), (25, 90, 6), (40, 140, 9)]
"""Elements passed, bytes of other tensors, bytes of gradients that wait."""
PASSAGE = BackwardMemory(tuple(PassState(*state) for state in MOMENTS), saved_bytes=80, tied=0)


def sizes(found: Bytes) -> tuple[int, int, int]:
    """Of activations, of what blocks work with, and of gradients."""
    categories = Category.ACTIVATIONS, Category.TEMPORARIES, Category.GRADIENTS
    assert set(found) <= set(categories)
    return tuple(found.get(category, 0) for category in categories)  # type: ignore[return-value] # there are three


@pytest.mark.parametrize(
    ("passed", "tied", "there"),
    [
        (0, 0, (80, 20, 4)),
        (9, 0, (80, 20, 4)),
        (10, 0, (80, 10, 6)),
        (24, 0, (80, 10, 6)),
        (25, 0, (80, 60, 9)),
        (10, 15, (80, 60, 9)),
        (99, 0, (80, 60, 9)),
    ],
)
def test_a_full_bucket_is_found_by_the_next_gradient_when_what_made_that_has_gone(
    passed: int, tied: int, there: tuple[int, int, int]
) -> None:
    assert sizes(BackwardMemory(PASSAGE.states, PASSAGE.saved_bytes, tied).at(passed)) == there


def test_what_goes_after_something_more_was_made_is_there_still() -> None:
    states = (PassState(1, 10, 0), PassState(1, 12, 0), PassState(1, 8, 0))
    assert sizes(BackwardMemory(states, saved_bytes=0, tied=0).at(0)) == (0, 10, 0)


def test_the_most_is_of_other_tensors_and_gradients_together() -> None:
    assert sizes(PASSAGE.most(lambda _: 0)) == (80, 60, 0)
    assert sizes(PASSAGE.most(lambda state: 50 if state.passed == 25 else 0)) == (80, 50, 50)
    assert sizes(PASSAGE.most(lambda state: 200 - 20 * state.waiting)) == (80, 40, 120)
    assert sizes(BackwardMemory(PASSAGE.states, saved_bytes=150, tied=0).most(lambda _: 0)) == (140, 0, 0)


def trial(kind: str = "gpt2", stage: int = 2, *, layers: int = 4, config: dict[str, Any] | None = None, **fields: Any):
    shape = {"name": "any", "hidden_size": 96, "num_heads": 3, "vocab_size": 257, "num_layers": layers, "family": kind}
    model = resolve_model(shape)
    model = model.model_copy(update={"hf_config": {**model.hf_config, **(config or {})}})
    return gpu_trial(model, stage, 8, **{"sequence_length": 64, "micro_batch_size": 4, **fields})


def states(asked: TrialSpec) -> tuple[PassState, ...]:
    return known(backward_memory_of(asked, 0)).states


@pytest.mark.parametrize("checkpoints", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_goes_from_the_heads_gradient_through_the_blocks(kind: str, stage: int, checkpoints: bool) -> None:
    asked = trial(kind, stage, activation_checkpointing=checkpoints)
    found, products = states(asked), matrices(asked.model)
    passed = [state.passed for state in found]
    assert passed == sorted(passed)
    assert (passed[0], passed[-1]) == (257 * 96, 257 * 96 + products.num_blocks * sum(products.block))
    assert min(state.waiting for state in found) == 0
    assert all(state.others > 0 for state in found)


@pytest.mark.parametrize("checkpoints", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize(
    ("config", "of_block", "outside"),
    [
        ({"resid_pdrop": 0.1}, 2, 0),
        ({"embd_pdrop": 0.1}, 0, 1),
        ({"resid_pdrop": 0.1, "embd_pdrop": 0.1}, 2, 1),
    ],
)
def test_masks_of_what_was_dropped_lie_there_until_their_block_is_left(
    config: dict[str, float], of_block: int, outside: int, checkpoints: bool
) -> None:
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    kept, dropped = (trial(config=none | more, activation_checkpointing=checkpoints) for more in ({}, config))
    shape, without, with_masks = trial_shape(kept), states(kept), states(dropped)
    mask, blocks = shape.tokens * shape.hidden_size, 1 if checkpoints else 4
    more = [(late.others - early.others) / mask for early, late in zip(without, with_masks, strict=True)]
    assert (more[0], more[-1]) == (outside + of_block * blocks, outside)
    assert more == sorted(more, reverse=True)
    if not checkpoints:
        assert set(more) == {outside + of_block * left for left in range(5)}
    assert [state._replace(others=0) for state in with_masks] == [state._replace(others=0) for state in without]


@pytest.mark.parametrize(
    "fields",
    [
        {"precision": "fp32"},
        {"attention": "eager"},
        {"activation_checkpointing": "every-2"},
        {"frozen": "wte"},
        {"layers": 1},
        {"prediction": {}},
    ],
)
def test_where_no_course_was_recorded_there_is_none(fields: dict[str, Any]) -> None:
    assert backward_memory_of(trial(), 0) is not None
    assert backward_memory_of(trial(**fields), 0) is None


@pytest.mark.parametrize(("others", "left"), [
    ((130, 130, 90), 90),  # what stays as it is hides nothing
    ((130, 90, 90), 90),
    ((130, 131, 90), 130),
    ((130, 129, 130), 129),
    ((130, 130, 130), 130),
])  # fmt: skip
def test_all_that_goes_before_anything_more_is_made_has_gone(others: tuple[int, ...], left: int) -> None:
    """Of a gradient that is made while so many bytes of others lie there, one after another."""
    states = [PassState(10, 100, 4), *(PassState(25, size, 6) for size in others)]
    assert sizes(BackwardMemory(tuple(states), saved_bytes=0, tied=0).at(10)) == (0, left, 6)
