"""Device memory within the backward pass beside model states, where its course was recorded (course.py).

Tensors of a pass come and go between the instants that the formulas of engines name: what a block's backward pass works
with, the gradient that finds a bucket full. Where no course is known, activations stand for them in proportion.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from zerobench.common.vocabulary import Category, Phase, StepKind
from zerobench.config.models.tensors import matrices
from zerobench.config.trial.trial import Offload, TrialSpec
from zerobench.estimate.memory.allocator import keeps_gradients
from zerobench.estimate.memory.course import BUCKETED, Course, course_of, kind_of, sizes_of
from zerobench.estimate.memory.deepspeed.setting import Instants, Setting
from zerobench.estimate.memory.terms.activations import activations, trial_shape
from zerobench.estimate.memory.terms.kept import MASK
from zerobench.estimate.memory.terms.terms import Bytes, Terms, add, hold

_OF_A_PASS = {Category.GRADIENTS, Category.TEMPORARIES}


class PassState(NamedTuple):
    """As something has been made or dropped, once the head's gradient has been handed on and before the embedding's."""

    passed: int
    """Elements of the matrices whose gradients have been made, the head's among them."""
    others: int
    """Bytes of the pass's tensors but gradients."""
    waiting: int
    """Bytes of gradients that have not been handed on, but a tied head's, which engines' formulas name."""


@dataclass(frozen=True)
class BackwardMemory:
    """Memory of one micro batch's backward pass on one rank."""

    states: tuple[PassState, ...]
    saved_bytes: int
    """What forward left for it: of a state's other tensors as many are activations at most."""
    tied: int
    """Elements of a tied head, whose gradient is made first and counts with the embedding's, which comes last."""

    def at(self, passed: int) -> Bytes:
        """As the gradient is made that comes after those of so many elements, and finds no room in their bucket."""
        passed += self.tied
        made = min(bisect_right(self.states, passed, key=lambda state: state.passed), len(self.states) - 1)
        state = later = self.states[made]
        for following in self.states[made + 1 :]:  # what it was made of has gone when it is handed on
            if following.others > later.others:
                break
            later = following
        return self._bytes(later, state.waiting)

    def most(self, gradients: Callable[[PassState], int]) -> Bytes:
        """The most that there is, with so many bytes of gradients and of what comes with them."""
        state = max(self.states, key=lambda state: state.others + gradients(state))
        return self._bytes(state, gradients(state))

    def _bytes(self, state: PassState, gradients: int) -> Bytes:
        kept = min(state.others, self.saved_bytes)
        return add(
            hold(Category.ACTIVATIONS, kept),
            hold(Category.TEMPORARIES, state.others - kept, "what a block's backward pass works with"),
            hold(Category.GRADIENTS, gradients, "gradients as they are made"),
        )


def backward_memory_of(trial: TrialSpec, tied: int) -> BackwardMemory | None:
    """That of `trial`, with a tied head of so many elements; None where no course was recorded of such a pass."""
    kind = kind_of(trial)
    if kind is None:
        return None
    shape = trial_shape(trial)
    sizes = tuple(sizes_of(kind, trial).items())
    key = kind, bool(trial.activation_checkpointing), trial.zero_stage == 3, shape.num_layers, sizes
    states = _states(_Asked(key, kind, trial))
    mask = MASK * shape.tokens * shape.hidden_size
    of_blocks, outside = 2 * mask * shape.drops_hidden, mask * shape.drops_embeddings
    if of_blocks or outside:
        blocks = 1 if trial.activation_checkpointing else shape.num_layers
        states = tuple(_with_masks(states, of_blocks, blocks, outside))
    return BackwardMemory(states, activations(trial).saved_bytes, tied)


def in_blocks(trial: TrialSpec, setting: Setting, instants: Instants, memory: BackwardMemory) -> Bytes:
    """The most that lies there as the head's gradient has been handed on and within blocks, whose gradients are handed
    on as they come, or stay.
    """
    there = Terms(
        *(term for term in add(instants.bucketed).terms if term.category not in _OF_A_PASS),
        *(term for term in add(instants.forward).terms if term.category in _OF_A_PASS),
    )
    if trial.strategy == "fsdp":
        return add(there, memory.most(_beside_fsdp(trial, setting)))
    begun = add(instants.bucketed, hold(Category.ACTIVATIONS, memory.saved_bytes))
    within = add(there, memory.most(_gradients(trial, setting, memory.states[0].passed)))
    return max(begun, within, key=lambda instant: sum(instant.values()))


def _gradients(trial: TrialSpec, setting: Setting, head: int) -> Callable[[PassState], int]:
    """Bytes of those that lie there without FSDP; `head`: elements of the head's."""
    element, tied = setting.trained_element, sum(setting.tied_gradients(1).values())
    if trial.strategy != "ddp" and keeps_gradients(trial, setting):
        return lambda state: element * state.passed
    return lambda state: state.waiting + tied if state.passed > head else max(state.waiting, tied)


def _beside_fsdp(trial: TrialSpec, setting: Setting) -> Callable[[PassState], int]:
    """Bytes of the head's gradient, of those of the block at work and of the one before, flattened to be reduced, and
    the parts of all that have been; without what is gathered no more: the block after the last one, or, kept gathered
    until then, those that backward has left.
    """
    products, head = matrices(trial.model), setting.first_gradient
    whole, last = sum(products.block), products.num_blocks - 1
    gradient, element, reshards = setting.trained_element, setting.case.element, trial.reshard_after_forward
    are_there = setting.case.micro_steps > 1 or trial.offload_param is not Offload.NONE
    part = 0 if are_there else 4 * setting.in_part(whole)

    def nbytes(state: PassState) -> int:
        before, within = divmod(state.passed - head, whole)
        gone = int(before >= last) if reshards else before
        return gradient * (head + within + min(before, 1) * whole) - element * gone * whole + before * part

    return nbytes


def _with_masks(states: tuple[PassState, ...], of_block: int, blocks: int, outside: int) -> Iterator[PassState]:
    """With the masks of what was dropped, which are in no course, of the blocks that backward has not left."""
    first, last = states[0].passed, states[-1].passed
    for state in states:
        left = -(-blocks * (last - state.passed) // max(1, last - first))
        yield state._replace(others=state.others + outside + of_block * left)


@dataclass(frozen=True)
class _Asked:
    key: tuple[object, ...]
    kind: str = field(compare=False)
    trial: TrialSpec = field(compare=False)


@lru_cache(maxsize=256)
def _states(asked: _Asked) -> tuple[PassState, ...]:
    course = course_of(asked.kind, asked.trial, StepKind.STEADY)
    states = list(_played(course, is_told=asked.trial.zero_stage != 3))
    products = matrices(asked.trial.model)
    blocks_end = states[0].passed + products.num_blocks * sum(products.block)
    states = states[: bisect_right(states, blocks_end, key=lambda state: state.passed)]
    tied = min(state.waiting for state in states)
    return tuple(state._replace(waiting=state.waiting - tied) for state in states)


def _played(course: Course, *, is_told: bool) -> Iterator[PassState]:
    """`is_told`: whether the course says when the head's gradient is handed on; of stage 3 it has that behind the first
    block, and the head is left when the next tensor is made.
    """
    live: dict[int, tuple[int, bool]] = {}
    passed, handed_on, sums = 0, False, [0, 0]
    for event in (*course[Phase.FORWARD], *course[Phase.BACKWARD]):
        handed_on |= event.number == BUCKETED if is_told else passed > 0 and event.nbytes > 0
        if event.nbytes:
            live[event.number] = event.nbytes, event.is_gradient
            sums[event.is_gradient] += event.nbytes
            passed += event.nbytes // 2 if event.is_gradient else 0
        elif (gone := live.pop(event.number, None)) is not None:
            sums[gone[1]] -= gone[0]
        if handed_on:
            yield PassState(passed, *sums)
