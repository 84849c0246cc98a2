"""What lies on the device within the backward pass beside model states, where its course was recorded (course.py).

Tensors of a pass come and go between the instants that the formulas of engines name: what a block's backward pass works
with, the gradient that finds a bucket full. Where no course is known, activations stand for them in proportion.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from zerobench.formulas.activations import activations, trial_shape
from zerobench.formulas.allocator import keeps_gradients
from zerobench.formulas.course import BUCKETED, Course, course_of, kind_of, sizes_of
from zerobench.formulas.deepspeed.setting import Instants, Setting
from zerobench.formulas.kept import MASK
from zerobench.formulas.terms import Bytes, Terms, add, hold
from zerobench.records import Category, Phase, StepKind
from zerobench.spec.tensors import matrices
from zerobench.spec.trial import Offload, TrialSpec

_OF_A_PASS = {Category.GRADIENTS, Category.TEMPORARIES}


class Moment(NamedTuple):
    """As something has been made or dropped, once the head's gradient has been handed on and before the embedding's."""

    passed: int
    """Elements of the matrices whose gradients have been made, the head's among them."""
    others: int
    """Bytes of the pass's tensors but gradients."""
    waiting: int
    """Bytes of gradients that have not been handed on, but a tied head's, which engines' formulas name."""


@dataclass(frozen=True)
class Passage:
    """Of one micro batch's backward pass on one rank."""

    moments: tuple[Moment, ...]
    saved_bytes: int
    """What forward left for it: of a moment's other tensors as many are activations at most."""
    tied: int
    """Elements of a tied head, whose gradient is made first and counts with the embedding's, which comes last."""

    def at(self, passed: int) -> Bytes:
        """As the gradient is made that comes after those of so many elements, and finds no room in their bucket."""
        passed += self.tied
        made = min(bisect_right(self.moments, passed, key=lambda moment: moment.passed), len(self.moments) - 1)
        moment = later = self.moments[made]
        for following in self.moments[made + 1 :]:  # what it was made of has gone when it is handed on
            if following.others > later.others:
                break
            later = following
        return self._bytes(later, moment.waiting)

    def most(self, gradients: Callable[[Moment], int]) -> Bytes:
        """The most that there is, with so many bytes of gradients and of what comes with them."""
        moment = max(self.moments, key=lambda moment: moment.others + gradients(moment))
        return self._bytes(moment, gradients(moment))

    def _bytes(self, moment: Moment, gradients: int) -> Bytes:
        kept = min(moment.others, self.saved_bytes)
        return add(
            hold(Category.ACTIVATIONS, kept),
            hold(Category.TEMPORARIES, moment.others - kept, "what a block's backward pass works with"),
            hold(Category.GRADIENTS, gradients, "gradients as they are made"),
        )


def passage_of(trial: TrialSpec, tied: int) -> Passage | None:
    """That of `trial`, with a tied head of so many elements; None where no course was recorded of such a pass."""
    kind = kind_of(trial)
    if kind is None:
        return None
    shape = trial_shape(trial)
    sizes = tuple(sizes_of(kind, trial).items())
    key = kind, bool(trial.activation_checkpointing), trial.zero_stage == 3, shape.num_layers, sizes
    moments = _moments(_Asked(key, kind, trial))
    mask = MASK * shape.tokens * shape.hidden_size
    of_blocks, outside = 2 * mask * shape.drops_hidden, mask * shape.drops_embeddings
    if of_blocks or outside:
        blocks = 1 if trial.activation_checkpointing else shape.num_layers
        moments = tuple(_with_masks(moments, of_blocks, blocks, outside))
    return Passage(moments, activations(trial).saved_bytes, tied)


def in_blocks(trial: TrialSpec, setting: Setting, instants: Instants, passage: Passage) -> Bytes:
    """The most that lies there as the head's gradient has been handed on and within blocks, whose gradients are handed
    on as they come, or stay.
    """
    there = Terms(
        *(term for term in add(instants.bucketed).terms if term.category not in _OF_A_PASS),
        *(term for term in add(instants.forward).terms if term.category in _OF_A_PASS),
    )
    if trial.strategy == "fsdp":
        return add(there, passage.most(_beside_fsdp(trial, setting)))
    begun = add(instants.bucketed, hold(Category.ACTIVATIONS, passage.saved_bytes))
    within = add(there, passage.most(_gradients(trial, setting, passage.moments[0].passed)))
    return max(begun, within, key=lambda instant: sum(instant.values()))


def _gradients(trial: TrialSpec, setting: Setting, head: int) -> Callable[[Moment], int]:
    """Bytes of those that lie there without FSDP; `head`: elements of the head's."""
    element, tied = setting.trained_element, sum(setting.tied_gradients(1).values())
    if trial.strategy != "ddp" and keeps_gradients(trial, setting):
        return lambda moment: element * moment.passed
    return lambda moment: moment.waiting + tied if moment.passed > head else max(moment.waiting, tied)


def _beside_fsdp(trial: TrialSpec, setting: Setting) -> Callable[[Moment], int]:
    """Bytes of the head's gradient, of those of the block at work and of the one before, flattened to be reduced, and
    the parts of all that have been; without what is gathered no more: the block after the last one, or, kept gathered
    until then, those that backward has left.
    """
    products, head = matrices(trial.model), setting.first_gradient
    whole, last = sum(products.block), products.num_blocks - 1
    gradient, element, reshards = setting.trained_element, setting.case.element, trial.reshard_after_forward
    are_there = setting.case.micro_steps > 1 or trial.offload_param is not Offload.NONE
    part = 0 if are_there else 4 * setting.in_part(whole)

    def nbytes(moment: Moment) -> int:
        before, within = divmod(moment.passed - head, whole)
        gone = int(before >= last) if reshards else before
        return gradient * (head + within + min(before, 1) * whole) - element * gone * whole + before * part

    return nbytes


def _with_masks(moments: tuple[Moment, ...], of_block: int, blocks: int, outside: int) -> Iterator[Moment]:
    """With the masks of what was dropped, which are in no course, of the blocks that backward has not left."""
    first, last = moments[0].passed, moments[-1].passed
    for moment in moments:
        left = -(-blocks * (last - moment.passed) // max(1, last - first))
        yield moment._replace(others=moment.others + outside + of_block * left)


@dataclass(frozen=True)
class _Asked:
    key: tuple[object, ...]
    kind: str = field(compare=False)
    trial: TrialSpec = field(compare=False)


@lru_cache(maxsize=256)
def _moments(asked: _Asked) -> tuple[Moment, ...]:
    course = course_of(asked.kind, asked.trial, StepKind.STEADY)
    moments = list(_played(course, is_told=asked.trial.zero_stage != 3))
    products = matrices(asked.trial.model)
    blocks_end = moments[0].passed + products.num_blocks * sum(products.block)
    moments = moments[: bisect_right(moments, blocks_end, key=lambda moment: moment.passed)]
    tied = min(moment.waiting for moment in moments)
    return tuple(moment._replace(waiting=moment.waiting - tied) for moment in moments)


def _played(course: Course, *, is_told: bool) -> Iterator[Moment]:
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
            yield Moment(passed, *sums)
