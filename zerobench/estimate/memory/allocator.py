"""Memory of torch's caching allocator beyond a step's tensors, played through its model.

States and buffers are born and die as the instants of the formulas follow each other, a block for each term; tensors of
the passes do in the order that was recorded of the engine (course.py). Two steps are played: what the first leaves
behind is what the next one finds.
"""

from __future__ import annotations

import itertools
import os
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from zerobench.common.vocabulary import Category, Phase, StepKind
from zerobench.config.trial.trial import CrossEntropy, TrialSpec
from zerobench.estimate.allocator.allocator_settings import AllocatorModel, allocator_model, device_row
from zerobench.estimate.allocator.caching_allocator import OutOfMemory
from zerobench.estimate.memory.course import BUCKETED, KEPT, Course, Event, course_of, kind_of
from zerobench.estimate.memory.deepspeed.setting import (
    CLONES,
    DRAWN_ELEMENTS,
    MODEL_TENSORS,
    NOT_HANDED_ON,
    TENSOR_CASTS,
    TOO_LARGE,
    WHOLE,
    Instants,
    Setting,
)
from zerobench.estimate.memory.terms.terms import Bytes, Term, Terms
from zerobench.records.records import DeviceMemory

_ON_SIDE_STREAM = {Category.GATHERED_PARAMETERS}
"""What DeepSpeed makes on a stream of its own: blocks that the main one never gets."""

_Block = tuple[Category, int, int]
"""A term's category, its bytes, and which one of equals it is."""


def allocator_rows(
    trial: TrialSpec, setting: Setting, instants: Mapping[StepKind, Instants], outside_bytes: int
) -> list[DeviceMemory]:
    """The allocator's figures at the end of each phase; none where no course was recorded of such a step.

    `outside_bytes`: what others than the allocator take of the device.
    """
    kind = kind_of(trial)
    whole = trial.zero_stage is not None and trial.cross_entropy is CrossEntropy.FULL
    if kind is None or setting.capacity_bytes is None or not whole:
        return []
    courses = {step: course_of(kind, trial, step) for step in StepKind}
    allocator = allocator_model(setting.capacity_bytes - outside_bytes, os.environ)
    bounded = _Play(allocator, setting)
    try:
        return bounded.play(trial, courses, instants)
    except OutOfMemory as refusal:  # one with room says how much is missing, and no less than was held and asked for
        least = allocator.reserved_bytes + refusal.bytes_asked
        rows = _Play(allocator_model(None, os.environ), setting).play(trial, courses, instants)
        refused = len(bounded.rows)
        most = max(rows[refused].held_bytes, least)
        rows[refused] = rows[refused].model_copy(update={"peak_occupied_bytes": most})
        return rows


class _Play:
    """One allocator, and what lies in it."""

    def __init__(self, allocator: AllocatorModel, setting: Setting) -> None:
        self._allocator, self._setting = allocator, setting
        self._made = 0
        self._held: dict[_Block, int] = {}
        self._tensors: dict[int, int] = {}
        """Of the pass under way, by their number in the course."""
        self._gradients: dict[int, int] = {}
        """That wait for backward's end, and their bytes."""
        self.rows: list[DeviceMemory] = []

    def play(
        self, trial: TrialSpec, courses: Mapping[StepKind, Course], by_step: Mapping[StepKind, Instants]
    ) -> list[DeviceMemory]:
        """Play start-up and two steps."""
        for step, instants in by_step.items():
            events = courses[step]
            if step is StepKind.FIRST:
                self._start_up(instants.init)
                self._note(step, Phase.INIT)
            self._drop(self._tensors.values())  # the inputs of the step before
            self._tensors = {}
            self._hold(instants.gathering)
            self._play(events[Phase.FORWARD])
            self._hold(instants.forward)
            self._note(step, Phase.FORWARD)
            self._backward(events[Phase.BACKWARD], instants, keeps=keeps_gradients(trial, self._setting))
            self._note(step, Phase.BACKWARD)
            self._hold_each(instants.step)
            self._note(step, Phase.STEP)
        return self.rows

    def _backward(self, course: Sequence[Event], instants: Instants, *, keeps: bool) -> None:
        """Gradients are tensors of the course; where they stay until backward's end, of the reduction too."""
        summed = frozenset[int]()
        if keeps:
            course, summed = self._kept_whole(course)
        handed_on = next(index for index, event in enumerate(course) if event.number == BUCKETED)
        self._play(course[:handed_on], keeps=keeps, but=summed)
        bucketed = _without_gradients(instants.bucketed, instants.forward)
        self._hold(bucketed)
        begun = handed_on + 1
        reducing = 2 * self._setting.case.overlaps
        for full, instant in () if keeps else _as_buckets_fill(course, instants.filled, self._setting.case.element):
            self._play(course[begun:full])
            begun = max(begun, full)
            self._hold(instant, reduces_on=reducing)
            self._hold(bucketed)
        self._play(course[begun:], keeps=keeps, but=summed)
        gradients = {event.number for event in course if event.is_gradient}
        self._drop(self._tensors.pop(number) for number in gradients & self._tensors.keys())  # a tied head's
        for instant in (*_fullest(instants), *instants.reduction):
            if keeps:
                self._hand_on(instant)
            self._hold(_without_gradients(instant, instants.forward) if keeps else instant, reduces_on=reducing)
        if keeps and self._setting.case.stage == 0:
            self._adopt_gradients()
        self._drop(self._gradients)
        self._gradients = {}
        self._hold(instants.backward_end)

    def _hand_on(self, instant: Bytes) -> None:
        """Drop the gradients of the model's first tensors that have come to stage 1's bucket."""
        left = sum(term.nbytes for term in _terms(instant) if term.words.startswith((WHOLE, NOT_HANDED_ON)))
        while self._setting.case.stage and sum(self._gradients.values()) > left:
            key, _ = self._gradients.popitem()  # backward makes them last
            self._allocator.free(key)

    def _kept_whole(self, course: Sequence[Event]) -> tuple[Sequence[Event], frozenset[int]]:
        """`course` where gradients stay, and the numbers of those that are dropped all the same: a tied head's and the
        embedding's, whose sum stays. Nothing of it is copied out of a bucket, as the last gradient was.
        """
        dropped = {event.number for event in course if not event.nbytes}
        head = self._setting.case.element * self._setting.head
        copied = {event.number for event in course if event.is_gradient and event.number not in dropped}
        head_and_embedding, sums = list[int](), set[int]()
        for event in course:
            if event.is_gradient and event.nbytes == head and event.number in dropped:
                (head_and_embedding.append if len(head_and_embedding) < 2 else sums.add)(event.number)
        if self._setting.tied_head and sums:
            return [event for event in course if event.number not in copied], frozenset(head_and_embedding)
        return [event for event in course if event.number not in copied | sums], frozenset()

    def _play(self, events: Sequence[Event], *, keeps: bool = False, but: frozenset[int] = frozenset()) -> None:
        """`keeps`: what the course says of when gradients are dropped does not hold, `but` of these."""
        for event in events:
            if not event.nbytes:
                if (key := self._tensors.pop(event.number, None)) is not None:
                    self._allocator.free(key)
                continue
            key = self._make(event.nbytes)
            if event.number == KEPT:
                continue
            if keeps and event.is_gradient and event.number not in but:
                self._gradients[key] = event.nbytes
            else:
                self._tensors[event.number] = key

    def _hold_each(self, instants: Iterable[Bytes]) -> None:
        for instant in instants:
            self._hold(instant)

    def _start_up(self, instants: Sequence[Bytes]) -> None:
        """The weights are drawn in fp32 once the model is there, or at stage 3 a tensor at a time, and there each is
        gathered once more in the end. What an engine casts is there before what it makes of it.
        """
        element = self._setting.case.element
        partitioned = self._setting.case.stage == 3 and self._setting.zero_init
        if not partitioned:
            self._hold(_only_model(instants[0]))
        for tensor in self._setting.tensors:
            whole = [self._make(element * tensor)] if partitioned else []
            for drawn in range(0, tensor, DRAWN_ELEMENTS):
                self._drop([self._make(4 * min(DRAWN_ELEMENTS, tensor - drawn))])
            self._drop(whole)
        instants = instants[1:] if partitioned else instants  # the first of which has been played
        for instant, following in itertools.zip_longest(instants, instants[1:], fillvalue=instants[-1]):
            self._hold(instant, following)
        for tensor in self._setting.tensors if partitioned else ():
            self._drop([self._make(element * tensor)])

    def _adopt_gradients(self) -> None:
        """Without ZeRO they stay where backward made them until they are updated with."""
        seen: Counter[int] = Counter()
        for key, nbytes in self._gradients.items():
            seen[nbytes] += 1
            self._held[Category.GRADIENTS, nbytes, seen[nbytes]] = key
        self._gradients = {}

    def _hold(self, instant: Bytes, following: Bytes | None = None, reduces_on: int = 0) -> None:
        """Let go of blocks that are not in `instant`, and make those that are new in it; where `following` is given,
        those that are not in that come first. `reduces_on`: the stream on which gradients are copied to be reduced.
        """
        stay = set() if following is None else set(_blocks(following, self._setting))
        wanted = dict.fromkeys(sorted(_blocks(instant, self._setting), key=stay.__contains__))
        for block in [block for block in self._held if block not in wanted]:
            self._allocator.free(self._held.pop(block))
        for block in wanted:
            if block not in self._held:
                reduced_on = reduces_on if block[0] is Category.REDUCE_BUFFERS else 0
                self._held[block] = self._make(block[1], int(block[0] in _ON_SIDE_STREAM) or reduced_on)

    def _make(self, nbytes: int, stream: int = 0) -> int:
        self._made += 1
        self._allocator.malloc(self._made, nbytes, stream)
        return self._made

    def _drop(self, keys: Iterable[int]) -> None:
        for key in keys:
            self._allocator.free(key)

    def _note(self, step: StepKind, phase: Phase) -> None:
        self.rows.append(device_row(self._allocator, step, phase))
        self._allocator.reset_peaks()


def _fullest(instants: Instants) -> list[Bytes]:
    copies = [instant.get(Category.REDUCE_BUFFERS, 0) for instant in instants.filled.values()]
    return [[*instants.filled.values()][copies.index(max(copies))]] if copies else []


def _as_buckets_fill(course: Sequence[Event], filled: Mapping[int, Bytes], element: int) -> Iterator[tuple[int, Bytes]]:
    """Positions in backward at which each bucket of `filled` is full: after how many events, as its next gradient
    comes.
    """
    waiting, passed = deque(filled.items()), 0
    for index, event in enumerate(course):
        passed += event.nbytes // element if event.is_gradient else 0
        while waiting and passed > waiting[0][0]:
            yield index + 1, waiting.popleft()[1]


def keeps_gradients(trial: TrialSpec, setting: Setting) -> bool:
    """Return whether gradients stay as backward makes them until its end: at stages 0 and 1, where none are there
    before and none are reduced within it.
    """
    is_reduced = setting.case.stage > 0 and setting.streams_gradients
    return not is_reduced and trial.gradient_accumulation_steps == 1


def _blocks(instant: Bytes, setting: Setting) -> Iterator[_Block]:
    """A block for each term; one for each tensor of what lies there tensor by tensor."""
    seen: Counter[tuple[Category, int]] = Counter()
    for term in _terms(instant):
        for nbytes in _pieces(term, setting):
            seen[term.category, nbytes] += 1
            yield term.category, nbytes, seen[term.category, nbytes]


def _terms(instant: Bytes) -> Sequence[Term]:
    return instant.terms if isinstance(instant, Terms) else [Term(*item) for item in instant.items()]


def _pieces(term: Term, setting: Setting) -> Sequence[int]:
    """Bytes of each block of a term."""
    if _is_by_tensor(term, setting):
        each = term.nbytes // setting.num_params
        return [each * tensor for tensor in setting.tensors]
    if not term.words.startswith((NOT_HANDED_ON, TOO_LARGE)):
        return [term.nbytes]
    limit = setting.case.bucket_elements
    came = (tensor for fill in setting.filled(limit) for tensor in fill if tensor > limit)
    tensors = came if term.words.startswith(TOO_LARGE) else reversed(setting.tensors)
    sizes = [setting.case.gradient_element * tensor for tensor in tensors]
    return sizes[: bisect_left(list(accumulate(sizes)), term.nbytes) + 1]


def _is_by_tensor(term: Term, setting: Setting) -> bool:
    """Return whether the term lies there tensor by tensor: without ZeRO all but what is flattened, and gradients then
    too.
    """
    if term.nbytes % setting.num_params:
        return False
    is_flat = setting.optimizer_info.is_flattened_in_16_bits
    of_stage_0 = setting.case.stage == 0 and (not is_flat or _is_whole_gradient(term, setting))
    return of_stage_0 or term.words.startswith((MODEL_TENSORS, CLONES, TENSOR_CASTS, WHOLE))


def _is_whole_gradient(term: Term, setting: Setting) -> bool:
    return term.category is Category.GRADIENTS and term.nbytes == setting.case.element * setting.num_params


def _only_model(instant: Bytes) -> Terms:
    """The model as it was built."""
    return Terms(*(term for term in _terms(instant) if term.words.startswith(MODEL_TENSORS)))


def _without_gradients(instant: Bytes, but: Bytes) -> Terms:
    """`instant`, its gradients those of `but`: tensors of the course stand for the others."""
    others = (term for term in _terms(instant) if term.category is not Category.GRADIENTS)
    return Terms(*others, *(term for term in _terms(but) if term.category is Category.GRADIENTS))
