"""Instants become rows: a phase ends with its last instant, and its peak is the instant that holds most."""

from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.estimate.memory.deepspeed.setting import NOTHING, Instants
from zerobench.estimate.memory.terms.activations import Activations, Logits
from zerobench.estimate.memory.timeline import device_phases, memory_rows, other_phases
from zerobench.records.records import MemoryRow

P, G, B = Category.PARAMETERS, Category.GRADIENTS, Category.REDUCE_BUFFERS
A, L, T, I = Category.ACTIVATIONS, Category.LOGITS_AND_LOSS, Category.TEMPORARIES, Category.INPUTS  # noqa: E741
MOMENTS = Instants(
    init=({P: 300}, {P: 100}),
    gathering={P: 101},
    forward={P: 102},
    first_gradient={P: 103},
    bucketed={P: 104},
    reduction=({P: 105, B: 7}, {P: 106}),
    backward_end={P: 107},
    step=({P: 108, G: 9}, {P: 109}),
)
KEPT = Activations((50, 50), (True, True), 5, 3, source="")
LOGITS = Logits(11, 13, 17, 19, head_gradient_bytes=23, input_gradient_bytes=29)


def test_activations_and_logits_lie_over_the_states_from_forward_to_the_heads_gradient() -> None:
    saved = {I: 8, A: 2 * 5 + 3}
    assert device_phases(MOMENTS, KEPT, LOGITS, input_tokens=1) == {
        Phase.INIT: [{P: 300}, {P: 100}],
        Phase.FORWARD: [{P: 101, **saved}, {P: 102, **saved, G: 23, T: 29, L: 13}, {P: 102, **saved, G: 23, L: 11}],
        Phase.BACKWARD: [
            {P: 102, **saved, G: 23, L: 17},
            {P: 103, **saved, L: 19},
            {P: 104, I: 8, A: 13 + 50},
            {P: 105, B: 7, I: 8},
            {P: 106, I: 8},
            {P: 107, I: 8},
        ],
        Phase.STEP: [{P: 108, G: 9, I: 8}, {P: 109, I: 8}],
    }


def test_outside_of_the_device_there_are_the_states_alone() -> None:
    assert other_phases(MOMENTS) == {
        Phase.INIT: [{P: 300}, {P: 100}],
        Phase.FORWARD: [{P: 101}, {P: 102}],
        Phase.BACKWARD: [{P: 102}, {P: 104}, {P: 105, B: 7}, {P: 106}, {P: 107}],
        Phase.STEP: [{P: 108, G: 9}, {P: 109}],
    }


def rows(step: StepKind, *instants: dict[Category, int], phase: Phase = Phase.STEP) -> list[MemoryRow]:
    return memory_rows(step, Place.HOST, {phase: instants})


def test_a_phases_rows_have_its_end_its_peak_and_each_categorys_own_peak() -> None:
    found = rows(StepKind.STEADY, {P: 10}, {P: 1, G: 20}, {P: 5, B: 2, T: 0})
    assert {(row.step, row.phase, row.place) for row in found} == {(StepKind.STEADY, Phase.STEP, Place.HOST)}
    assert {row.category: (row.live_bytes, row.at_peak_bytes, row.own_peak_bytes) for row in found} == {
        P: (5, 1, 10),
        G: (0, 20, 20),
        B: (2, 0, 2),
        T: (0, 0, 0),
        Category.TOTAL: (7, 21, 21),
    }


def test_the_start_is_told_with_the_first_step_alone() -> None:
    assert {row.phase for row in rows(StepKind.FIRST, {P: 1}, phase=Phase.INIT)} == {Phase.INIT}
    assert rows(StepKind.STEADY, {P: 1}, phase=Phase.INIT) == []


def test_a_place_in_which_nothing_ever_lies_has_no_rows() -> None:
    assert memory_rows(StepKind.STEADY, Place.NVME, other_phases(NOTHING)) == []
    assert rows(StepKind.STEADY, {P: 0}) == []
    assert rows(StepKind.STEADY, {P: 0}, {P: 1}) != []
