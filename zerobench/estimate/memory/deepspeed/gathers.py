"""Parameters that stage 3 gathers in a micro-batch, by playing DeepSpeed's rule of fetching and releasing over the
modules' order.

partitioned_param_coordinator.py, 0.19.8: a module's parameters are gathered as it is entered, and those of later ones
ahead of their use, a prefetch bucket at a time, until `stage3_max_live_parameters` are there (_fetch_sub_module_impl).
As a module is left its parameters are released, unless they are used again within `stage3_max_reuse_distance` elements,
or were to be prefetched for a later use while they were still there (__params_to_release). Frozen ones of a block that
has run once more are released with the module that backward had come to (update_recompute_parameters). Of parameters on
drives only those are gathered ahead that have been read, and read ahead only as far as buffers are free
(__prefetch_nvme_param_partitions).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from zerobench.common.vocabulary import Phase
from zerobench.config.deepspeed.case import Case
from zerobench.estimate.memory.terms.module_order import ModuleOrder, Visit


@dataclass(eq=False)
class _Bucket:
    """Elements that one call gathers."""

    left: set[int]
    """Those of its parameters that no module has waited for."""
    elements: int
    """With padding."""
    is_cut: bool = False


class Held(NamedTuple):
    """Elements at one instant."""

    gathered: int
    by_autograd: int
    """Those that it holds for backward when they have been released."""
    twice: int
    """Those that lie in their flat buffer too, of which not all tensors have been used yet."""


@dataclass
class Gathers:
    """Gathers of one micro-batch on one rank."""

    calls: dict[Phase, int] = field(default_factory=lambda: defaultdict(int))
    elements: dict[Phase, int] = field(default_factory=lambda: defaultdict(int))
    """Gathered, with padding."""
    read: dict[Phase, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Elements of each of this rank's parts that was read from a drive."""
    first_calls: int = 0
    first_elements: int = 0
    """Of those in forward, what had not been gathered in this micro-batch before."""
    left: int = 0
    """Elements that are gathered, or held by autograd, as forward ends."""
    after_head: int = 0
    """The most of them once backward has left the first module that it came to."""
    held: dict[Phase, dict[Held, int]] = field(default_factory=lambda: defaultdict(dict))
    """What is gathered as the phase goes on, each amount once, in this order, and how many modules had been entered
    when it was so last.
    """


class _Limits(NamedTuple):
    """All that the configuration says of it: who asks with the same has the same answer."""

    ranks: int
    accumulates: bool
    prefetch_bucket: int
    most_live: int
    reuse_distance: int
    buffers: int
    persistent: frozenset[int]
    swapped: frozenset[int]


def gathers(order: ModuleOrder, case: Case, swapped: frozenset[int]) -> Gathers:
    """Return the gathers of a micro-batch of a steady step; `swapped` are the numbers of the parameters that lie on
    drives.

    Shared by all who ask alike, as variants of a search do: not to be changed.
    """
    limits = _Limits(
        ranks=case.world_size,
        accumulates=case.micro_steps > 1,
        prefetch_bucket=int(case.zero("stage3_prefetch_bucket_size")),
        most_live=int(case.zero("stage3_max_live_parameters")),
        reuse_distance=int(case.zero("stage3_max_reuse_distance")),
        buffers=int(case.zero("offload_param.buffer_count")) if swapped else 0,
        persistent=frozenset(persistent_numbers(case, order.sizes)),
        swapped=swapped,
    )
    return _gathers(order, limits)


@lru_cache(maxsize=256)
def _gathers(order: ModuleOrder, limits: _Limits) -> Gathers:
    """Releases are decided once for each module, in the first micro-batch whose order is known
    (functools.lru_cache of __params_to_release): the second one, and where a step has but one, that of a step whose
    small parameters are there.
    """
    decided: dict[tuple[int, int], bool] = {}
    if limits.accumulates:
        _play(_Coordinator(order, limits, frozenset(), decided), order)
    return _play(_Coordinator(order, limits, limits.persistent, decided), order)


def _play(coordinator: _Coordinator, order: ModuleOrder) -> Gathers:
    for visit in order.visits:
        coordinator.take(visit)
    return coordinator.gathers


def persistent_numbers(case: Case, sizes: Sequence[int]) -> list[int]:
    """Return the numbers of the tensors of so many elements."""
    largest, cap = (int(case.zero(f"stage3_{which}_persistence_threshold")) for which in ("param", "model"))
    numbers: list[int] = []
    total = 0
    for number, size in enumerate(sizes):
        if size <= largest and total + size <= cap:
            numbers.append(number)
            total += size
    return numbers


class _Coordinator:
    def __init__(
        self,
        order: ModuleOrder,
        limits: _Limits,
        there: frozenset[int],
        decided: dict[tuple[int, int], bool],
    ) -> None:
        self._sizes, self._trained, self._coded = order.sizes, order.trained, order.coded
        self._limits, self._decided = limits, decided
        entered = [visit.parameters for visit in order.visits if not visit.leaves]
        self._passed = [0, *accumulate(sum(self._sizes[number] for number in own) for own in entered)]
        self._uses: dict[int, list[int]] = defaultdict(list)
        for step, own in enumerate(entered):
            for number in own:
                self._uses[number].append(step)
        self._queue = [(number, step) for step, own in enumerate(entered) for number in sorted(own)]
        self._next = self._step = self._live = 0
        self._there, self._loaded = set(there), set[int]()
        self._under_way, self._seen = dict[int, _Bucket | None](), set[int]()
        self._amounts = {number: self._sizes[number] for number in there}
        self._saved, self._held, self._used = set[int](), dict[int, int](), tuple[int, ...]()
        self._gathered, self._by_autograd, self._twice = sum(self._amounts.values()), 0, 0
        self._fetched_for: dict[int, int] = defaultdict(lambda: -1)
        self._run_again: set[int] = set()
        self._phase, self._has_left_head = Phase.FORWARD, False
        self.gathers = Gathers()

    def take(self, visit: Visit) -> None:
        if visit.is_backward and self._phase is Phase.FORWARD:
            self.gathers.left = self._gathered + self._by_autograd
            self._phase = Phase.BACKWARD
        self._let_go()
        if visit.leaves:
            self._leave(visit)
            self._has_left_head |= visit.is_backward
        else:
            self._enter(visit)
        self._look()

    def _enter(self, visit: Visit) -> None:
        own = visit.parameters
        self._gather([number for number in own if number not in self._there])
        self._wait(own)
        if visit.runs_again:
            self._run_again.update(set(own) - self._trained - self._limits.persistent)
        elif visit.is_backward:
            self._used = own
        asked = sum(self._fetched_for[number] < self._step for number in own)
        passed: set[int] = set()
        while len(passed) < asked:
            number, step = self._queue[self._next]
            self._next += 1
            self._fetched_for[number] = step
            passed.add(number)
        self._look()
        self._prefetch()
        self._look()
        self._step += 1

    def _wait(self, numbers: Sequence[int]) -> None:
        """The tensors of a bucket are cut from it as the first of them is waited for; it goes with the last one
        (partition_parameters.py, AllGatherCoalescedHandle). A tensor gathered alone lies in its buffer.
        """
        self._look()
        for number in numbers:
            bucket = self._under_way.pop(number, None)
            if bucket is None:
                continue
            if not bucket.is_cut:
                bucket.is_cut = True
                self._amounts.update({each: self._sizes[each] for each in bucket.left})
                self._gathered += sum(self._sizes[each] for each in bucket.left) - bucket.elements
                self._twice += bucket.elements
                self._look()
            bucket.left.discard(number)
            if not bucket.left:
                self._twice -= bucket.elements

    def _let_go(self) -> None:
        """Elements that autograd held for the module whose backward pass has ended: codes from forward on (MatMul4Bit
        in bitsandbytes/autograd/_functions.py), the weights of a block since it ran again (torch/utils/checkpoint.py).
        """
        self._saved.difference_update(self._used)
        self._by_autograd -= sum(self._held.pop(number, 0) for number in self._used)
        self._used = ()

    def _look(self) -> None:
        if self._has_left_head:
            now = self._gathered + self._by_autograd + self._twice
            self.gathers.after_head = max(self.gathers.after_head, now)
        self.gathers.held[self._phase][Held(self._gathered, self._by_autograd, self._twice)] = self._step

    def _prefetch(self) -> None:
        if not self._limits.prefetch_bucket:
            return
        room = min(self._limits.most_live - self._live, self._limits.prefetch_bucket)
        ahead: dict[int, None] = {}
        while self._next < len(self._queue) and room > 0:
            number, step = self._queue[self._next]
            if number in self._limits.swapped and number not in self._loaded:
                break
            self._next += 1
            self._fetched_for[number] = max(self._fetched_for[number], step)
            if number not in self._there and number not in ahead:
                ahead[number] = None
                room -= self._sizes[number]
        self._gather(list(ahead))
        if self._limits.swapped:
            self._read_ahead()

    def _read_ahead(self) -> None:
        most = 2 * sum(self._sizes[number] for number in self._under_way)
        passed, ahead = 0, list[int]()
        for number, _ in self._queue[self._next :]:
            if passed > most or len(ahead) >= self._limits.buffers - len(self._loaded):
                break
            if number in self._limits.swapped and number not in self._loaded and number not in ahead:
                ahead.append(number)
            passed += self._sizes[number]
        self._read(ahead)

    def _gather(self, numbers: Sequence[int]) -> None:
        if not numbers:
            return
        self._read([number for number in numbers if number in self._limits.swapped and number not in self._loaded])
        self.gathers.elements[self._phase] += self._padded(numbers)
        self.gathers.calls[self._phase] += 1
        if self._phase is Phase.FORWARD and (first := [number for number in numbers if number not in self._seen]):
            self.gathers.first_elements += self._padded(first)
            self.gathers.first_calls += 1
        self._seen.update(numbers)
        self._live += sum(self._sizes[number] for number in numbers)
        self._there.update(numbers)
        elements = self._padded(numbers)
        self._gathered += elements
        if len(numbers) == 1:
            self._amounts[numbers[0]], self._under_way[numbers[0]] = elements, None
        else:
            self._under_way.update(dict.fromkeys(numbers, _Bucket(set(numbers), elements)))

    def _padded(self, numbers: Sequence[int]) -> int:
        return self._limits.ranks * sum(-(-self._sizes[number] // self._limits.ranks) for number in numbers)

    def _read(self, numbers: Sequence[int]) -> None:
        self.gathers.read[self._phase] += [-(-self._sizes[number] // self._limits.ranks) for number in numbers]
        self._loaded.update(numbers)

    def _leave(self, visit: Visit) -> None:
        if visit.saves:
            self._saved.update(n for n in visit.parameters if visit.runs_again != (n in self._coded))
        released = [number for number in visit.parameters if not self._stays(number)]
        if visit.is_backward:
            released += self._run_again
            self._run_again = set()
        for number in {*released} & self._there - self._under_way.keys():
            self._there.remove(number)
            self._loaded.discard(number)
            self._live -= self._sizes[number]
            amount = self._amounts.pop(number)
            self._gathered -= amount
            if number in self._saved and number not in self._held:
                self._held[number] = amount
                self._by_autograd += amount

    def _stays(self, number: int) -> bool:
        key = self._step, number
        if key not in self._decided:
            self._decided[key] = self._is_kept(number)
        return self._decided[key]

    def _is_kept(self, number: int) -> bool:
        if number in self._limits.persistent or self._fetched_for[number] > self._step:
            return True
        uses = self._uses[number]
        following = bisect_left(uses, self._step)
        between = (
            self._passed[uses[following]] - self._passed[self._step]
            if following < len(uses)
            else self._limits.reuse_distance
        )
        return between < self._limits.reuse_distance
