"""Courses drop what they made, once, at any depth; their sizes are those of the formulas."""

from collections import Counter

import pytest

from benchmarks.prediction.simulated import gpu_trial
from zerobench.common.vocabulary import Phase, StepKind
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.memory.course import BUCKETED, KEPT, KINDS, LEAST_BLOCKS, course_of, sizes_of
from zerobench.estimate.memory.terms.activations import activations

SHAPE = {"name": "any", "hidden_size": 96, "num_heads": 3, "vocab_size": 257}


def trial(kind: str, stage: int, blocks: int, *, checkpoints: bool) -> TrialSpec:
    """A model of that kind whose tensors are small."""
    model = resolve_model(SHAPE | {"family": kind, "num_layers": blocks})
    return gpu_trial(model, stage, 8, activation_checkpointing=checkpoints, sequence_length=64, micro_batch_size=4)


@pytest.mark.parametrize("checkpoints", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("blocks", [LEAST_BLOCKS, 4, 9])
def test_a_course_drops_each_tensor_once_and_only_after_it_was_made(
    kind: str, stage: int, blocks: int, checkpoints: bool
) -> None:
    course = course_of(kind, trial(kind, stage, blocks, checkpoints=checkpoints), StepKind.STEADY)
    live: dict[int, int] = {}
    for event in (*course[Phase.FORWARD], *course[Phase.BACKWARD]):
        if event.nbytes:
            assert event.number not in live
            live[event.number] = event.nbytes
        elif event.number != BUCKETED:
            del live[event.number]
    assert len(live) <= 4  # inputs, and a tied head's gradient


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_forward_pass_leaves_is_the_formulas_activations_within_a_percent(kind: str) -> None:
    asked = trial(kind, 2, 6, checkpoints=False)
    live: Counter[int] = Counter()
    for event in course_of(kind, asked, StepKind.STEADY)[Phase.FORWARD]:
        live[event.number] = event.nbytes
    tokens = asked.micro_batch_size * asked.sequence_length
    logits, found = 4 * tokens * SHAPE["vocab_size"], activations(asked).saved_bytes  # type: ignore[operator]
    assert sum(live.values()) - logits == pytest.approx(found, rel=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_gradient_is_handed_on_once_after_it_was_made_and_before_the_first_block_is_computed_again(
    kind: str,
) -> None:
    backward = course_of(kind, trial(kind, 2, 4, checkpoints=True), StepKind.STEADY)[Phase.BACKWARD]
    [place] = [index for index, event in enumerate(backward) if event.number == BUCKETED]
    assert [event.is_gradient for event in backward[:place]].count(True) == 1
    assert place < 20


@pytest.mark.parametrize(("kind", "forward"), [("gpt2", 12), ("llama", 15)])
def test_the_workspace_is_taken_right_after_the_tensor_of_the_pass_that_the_course_names(
    kind: str, forward: int
) -> None:
    course = course_of(kind, trial(kind, 2, 4, checkpoints=False), StepKind.FIRST)
    for phase, after in ((Phase.FORWARD, forward), (Phase.BACKWARD, 4)):
        [place] = [index for index, event in enumerate(course[phase]) if event.number == KEPT]
        assert course[phase][place - 1].nbytes > 0
        assert sum(event.nbytes > 0 for event in course[phase][:place]) == after


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_several_widths_are_bytes_of_their_sum(kind: str) -> None:
    asked = trial(kind, 2, 4, checkpoints=False)
    sizes, tokens, heads, width = sizes_of(kind, asked), 4 * 64, 3, 96
    assert (sizes["4Ta"], sizes["4Tha"]) == (4 * tokens * heads, 4 * tokens * (width + heads))
    assert sizes["2Thkk"] == 2 * tokens * 3 * width
    assert sizes["8Tb"] == 8 * 4 * (64 + 1)


def test_the_matrix_library_takes_a_workspace_in_each_pass_of_the_first_step_and_keeps_it() -> None:
    for step, each in ((StepKind.FIRST, 1), (StepKind.STEADY, 0)):
        course = course_of("llama", trial("llama", 2, 4, checkpoints=True), step)
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            assert [event.nbytes for event in course[phase] if event.number == KEPT] == [32 * 2**20] * each
