"""The ledger: the purpose of every byte of device and host memory, over each phase of a step.

    ledger = Ledger("cuda:0", walk=lambda: walk_deepspeed(engine))
    with ledger.tracking():
        with ledger.phase(StepKind.STEADY, Phase.FORWARD):
            loss = model(batch)

Totals come from a counter without names (the book of torch's allocator on a CPU, the caching allocator on CUDA), names
from naming.py, and the unnamed remainder has a row of its own. On a CPU run, device and host are the same memory: what
DeepSpeed offloads is `host` by identity, everything else is `device`.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.estimate.allocator.allocator_settings import page_locked_rounding, uncounted_host_notes
from zerobench.rank.ledger import cuda, host
from zerobench.rank.ledger.booked_phase import BookedPhase
from zerobench.rank.ledger.course import Courses
from zerobench.rank.ledger.cpu_book import CpuBook, NoBookError, opened_book
from zerobench.rank.ledger.engine_tensors import NamedTensor
from zerobench.rank.ledger.held import Holdings, host_standing
from zerobench.rank.ledger.ledger_rows import LedgerRows
from zerobench.rank.ledger.naming import Names, watch_random_states
from zerobench.rank.ledger.peak_parts import largest_parts
from zerobench.rank.ledger.replay import replay, things_at_peak
from zerobench.rank.ledger.sites import Site, SiteFinder
from zerobench.rank.ledger.storages import Event, Storage, StorageCounter, is_wrapper
from zerobench.records.records import Holder, HostStanding, MemoryCourse, MemoryRow, ProcessMemory

_NOTED_BYTES = 64 * 1024
"""Unnamed storages below this size get no note."""
_UNSEEN = "no tensor seen (another thread, or C++)"
_Verdict = tuple[Place, Category | None]
_Part = tuple[Storage, bool]
"""A storage (False), or the rounding of its page-locked memory (True)."""


class Ledger:
    """Memory of one rank by phase, place and category.

    `device`: the training device; `walk`: yields the engine's tensors with their names, called at the end of each
    phase; `in_own_process`: False if the kernel's figures of this process are not the trial's (a simulated one);
    `device_totals`: totals of a model of the device's allocator over the current phase, if there is one; `sites`:
    finds allocation sites in code outside the table of known ones.
    """

    def __init__(
        self,
        device: torch.device,
        walk: Callable[[], Iterable[NamedTensor]],
        make_counter: Callable[[Callable[[], Any]], StorageCounter] = StorageCounter,
        *,
        in_own_process: bool = True,
        device_totals: Callable[[], cuda.AllocatorTotals | None] = lambda: None,
        sites: SiteFinder | None = None,
    ) -> None:
        self._device = device
        self._walk = walk
        self._in_own_process = in_own_process
        self._device_totals = device_totals
        self.counter = make_counter(sites or SiteFinder())
        self.counter.finds_page_locked = device.type == "cuda"
        self.names = Names(self.counter)
        self._rows = LedgerRows()
        self._courses = Courses()
        self._process: dict[tuple[StepKind, Phase], ProcessMemory] = {}
        self._resident_bytes = 0
        """Resident memory at the end of the phase that was accounted for last."""
        self._unattributed_sites: dict[str, int] = {}
        self._logits_node: int | None = None
        self._model: weakref.ref[torch.nn.Module] | None = None
        counts_all = in_own_process or device.type == "cpu"
        self.notes: list[str] = [] if counts_all else uncounted_host_notes(os.environ)
        """Memory that could not be counted, and why."""
        self.peak_occupied_bytes: int | None = None
        """Most bytes of a CUDA allocator's occupied segments in the last phase."""
        self.host_peak: HostStanding | None = None
        """Use of host memory at its peak over all phases so far."""
        self.tell_host: Callable[[HostStanding], object] = lambda _: None
        """Called at the end of each phase with the use of host memory at its peak."""
        self._book = self._open_book() if in_own_process else None

    @contextmanager
    def tracking(self, model: torch.nn.Module | None = None) -> Iterator[None]:
        """Count storages while open; first adopts those born since the last time.

        With `model`, its gradients are named as soon as they are accumulated, before an engine takes them away.
        """
        if self._book is not None:
            self._book.open()
            self.counter.keep_book(self._book)
        self.counter.adopt_reachable()
        with ExitStack() as stack:
            if model is not None:
                self._model = weakref.ref(model)
                self.names.paths.know(model)
                for hook in [*self._hook_gradients(model), *self._hook_logits(model), self._hook_output(model)]:
                    stack.callback(hook.remove)
                del model  # a step may end with another one
            if self._device.type == "cuda":
                stack.enter_context(cuda.recorded_history())
            stack.enter_context(self.counter)
            if self._book is not None:
                stack.enter_context(watch_random_states(lambda state: self.name_kept([state])))
            yield

    @contextmanager
    def watching(self, model: torch.nn.Module | None) -> Iterator[None]:
        """Record births in the last step before one that is accounted for.

        A gloo thread may release tensors of this step only within the next one, where short-lived ones have no name.
        """
        with self.tracking(), nullcontext() if model is None else self._hook_output(model):
            del model
            yield
        self.names.end_of(Phase.STEP)

    @contextmanager
    def phase(self, step: StepKind, phase: Phase) -> Iterator[None]:
        """Account for memory that is allocated and freed inside; call within `tracking`.

        A phase that is entered again for the same step (gradient accumulation) keeps its larger peak and its last live
        bytes.
        """
        has_peak = self._in_own_process and host.reset_peak_resident()
        self.counter.start_phase()
        if self._book is not None:
            self._book.start_phase()
        if self._device.type == "cuda":
            cuda.start_phase(self._device)
        saved = torch.autograd.graph.saved_tensors_hooks(self.names.saved, _unchanged)
        with saved if phase is not Phase.INIT else nullcontext():
            yield
        self.names.walked(self._walk())
        self._account(step, phase)
        self._note_process(step, phase, has_peak=has_peak)
        self.names.end_of(phase)

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Account for a helper thread as part of the phase; the thread that entered the phase waits for it."""
        hooks = torch.autograd.graph.saved_tensors_hooks(self.names.saved, _unchanged)
        with self.counter.counting_thread(), hooks:
            yield

    def look_back(self, step: StepKind, phase: Phase) -> None:
        """Account for a past phase that was not tracked, from the history of the CUDA allocator.

        Standing blocks are named by identity; blocks that were taken and freed are temporaries.
        """
        self.counter.adopt_reachable()
        self.counter.start_phase()
        self.names.walked(self._walk())
        self._account(step, phase)

    def inherit_births(self, earlier: StorageCounter) -> None:
        """Take the allocation sites of standing storages from `earlier`, which was active at start-up.

        Only the sites: categories at start-up come from `look_back`, without it. The exception are the gradient buckets
        that DDP makes in C++, which are not reachable: they count as `earlier` saw them.
        """

        def born_before(key: int) -> Site | None:
            storage = earlier.live.get(key)
            return None if storage is None else replace(storage.birth, proves=None)

        self.counter.born_before = born_before
        self.counter.adopt_of(earlier, lambda s: s.device == "cuda" and s.birth.proves is Category.GRADIENTS)

    def held(self, phase: Phase) -> Holdings:
        """Memory of live tensors on the device now, within `phase`; unnamed memory is unattributed."""
        kind = self._device.type
        return self._held_now(phase, lambda storage, place: place is Place.DEVICE and storage.device == kind, kind)

    def host_standing(self, phase: Phase, at: str) -> HostStanding:
        """Use of host memory now; for CPU ranks, whose device is the host, all memory."""
        holdings = self._held_now(phase, self._is_on_host, "cpu")
        rest = host.resident_bytes() - holdings.by_category.total() if self._in_own_process else None
        standing = host_standing(holdings, at, rest)
        addresses = host.address_space() if self._in_own_process else None
        if addresses is None:
            return standing
        taken, limit = addresses
        return standing.model_copy(update={"address_space_bytes": taken, "address_limit_bytes": limit})

    def _held_now(self, phase: Phase, is_there: Callable[[Storage, Place], bool], device_type: str) -> Holdings:
        self.counter.adopt_reachable()
        self.names.walked(self._walk())
        born = {storage for storage, delta in self.counter.events if delta > 0}  # since the phase began
        live = self.counter.live.values()
        verdicts = {storage: self._verdict(storage, phase, is_within=storage in born) for storage in live}
        parts = _split_rounding((s, s.nbytes) for s, (place, _) in verdicts.items() if is_there(s, place))
        return self._holdings(parts, lambda storage: verdicts[storage][1], device_type)

    def _holdings(
        self, parts: Iterable[tuple[_Part, int]], category_of: Callable[[Storage], Category | None], device_type: str
    ) -> Holdings:
        holdings = Holdings()
        for part, nbytes in parts:
            storage = part[0]
            category = _category(part, category_of) or Category.UNATTRIBUTED
            site = None if storage.is_adopted else storage.birth  # the birth of an adopted storage was not seen
            holdings.add(nbytes, category, site, self.names.holder_words(storage, category))
        model = None if self._model is None else self._model()
        if model is not None:
            holdings.add_states(model, device_type)
        return holdings

    def _is_on_host(self, storage: Storage, place: Place) -> bool:
        return storage.device == "cpu" and (place is Place.HOST or self._device.type == "cpu")

    def name_inputs(self, tensors: Iterable[torch.Tensor]) -> None:
        """Name the batch by identity, since data loaders allocate it outside the phases."""
        self.names.identify(NamedTensor(t, Category.INPUTS, holder=Holder.LOOP) for t in tensors)

    def name_kept(self, tensors: Iterable[torch.Tensor]) -> None:
        """Name tensors of the forward pass that outlive the backward pass."""
        self.names.identify(NamedTensor(t, Category.ACTIVATIONS, holder=Holder.LOOP) for t in tensors)

    def name_logits(self, logits: torch.Tensor) -> None:
        """Name the logits that the model passes to a loss computed outside of it."""
        self._logits_node = None if logits.grad_fn is None else logits.grad_fn._sequence_nr()
        self.names.identify([NamedTensor(logits, Category.LOGITS_AND_LOSS, holder=Holder.LOOP)])

    def mark_loss(self, loss: torch.Tensor) -> None:
        """Mark the end of the forward pass; the graph between the logits and `loss` belongs to the loss."""
        self.names.mark_loss_graph(loss, self._logits_node)
        self._logits_node = None

    def forget(self, step: StepKind) -> None:
        """Drop the rows of a kind of step, so that only its last repetition is reported."""
        self._rows.forget(step)
        self._courses.forget(step)
        self._process = {key: row for key, row in self._process.items() if key[0] is not step}

    def leave_process(self) -> None:
        """Stop reading process memory; malloc is unpinned from here on and keeps freed memory."""
        self._in_own_process = False

    def rest(self) -> None:
        """Close the book, so that torch allocates at full speed until the next `tracking`."""
        if self._book is not None:
            self._book.close()

    def peak_bytes(self, step: StepKind, place: Place) -> int | None:
        """Largest total within a phase of this kind of step, without start-up; None if nothing was tracked."""
        return self._rows.peak_bytes(step, place)

    def parts_at_peak(self, step: StepKind, place: Place) -> dict[str, int]:
        """Bytes by category at the largest peak within this kind of step; start-up is part of the first step."""
        return self._rows.parts_at_peak(step, place)

    def rows(self) -> list[MemoryRow]:
        """All rows so far, including a `total` row for each phase and place."""
        return self._rows.all()

    def courses(self) -> list[MemoryCourse]:
        """Device memory by category over start-up and each phase of the steady step."""
        return self._courses.all()

    def process_rows(self) -> list[ProcessMemory]:
        """Process memory from the kernel at the end of each phase."""
        return list(self._process.values())

    def unattributed_sites(self, count: int = 5) -> list[tuple[str, int]]:
        """Allocation sites of the largest unnamed storages, with their bytes at the end or peak of a phase."""
        ranked = sorted(self._unattributed_sites.items(), key=lambda item: -item[1])
        return ranked[:count]

    def unattributed_notes(self) -> list[str]:
        """One note for each large unattributed site."""
        noted = (item for item in self.unattributed_sites() if item[1] >= _NOTED_BYTES)
        return [f"unattributed: {nbytes:,} bytes allocated at {site}" for site, nbytes in noted]

    def _account(self, step: StepKind, phase: Phase) -> None:
        verdicts: dict[Storage, _Verdict] = {}

        def verdict(storage: Storage) -> _Verdict:
            if storage not in verdicts:
                verdicts[storage] = self._verdict(storage, phase)
            return verdicts[storage]

        def category_of(storage: Storage) -> Category | None:
            return verdict(storage)[1]

        live = list(self.counter.live.values())
        events = self.counter.events
        booked = None
        if self._book is not None:
            storages = dict.fromkeys([*live, *(storage for storage, _ in events)])
            unseen_place = Place.DEVICE if self._device.type == "cpu" else Place.HOST
            booked = BookedPhase(self._book.pages(), storages, verdict, unseen_place)
            self._note_site(_UNSEEN, booked.largest_unseen_bytes())
        for place in (Place.DEVICE, Place.HOST):
            if place is Place.DEVICE and self._device.type == "cuda":
                here = cuda.composition(self._device, live, events, category_of)
            elif booked is not None:
                here = booked.composition(place)
            else:
                here = replay(
                    _split_rounding((s, s.nbytes) for s in live if verdict(s)[0] is place),
                    list(_split_rounding((s, delta) for s, delta in events if verdict(s)[0] is place)),
                    lambda part: _category(part, category_of),
                    lambda part: None if part[1] else part[0],
                )
            totals = self._device_totals() if place is Place.DEVICE else None
            if totals is not None:
                here = cuda.apply_totals(here, totals)
            if place is Place.DEVICE:
                self.peak_occupied_bytes = here.peak_occupied
                self._courses.enter(step, phase, here)
            rest = None
            if place is Place.HOST:
                rest = self._rest_of_process(here.live[Category.ALLOCATOR_ROUNDING])
                self._account_for_host(_peak_of(step, phase), live, verdict, rest)
            parts = {} if here.walk is None else largest_parts(here.walk, self.names.holders, self.names.saver)
            self._rows.enter((step, phase, place), here, rest, parts)
        for storage, (_, category) in verdicts.items():
            if category is None:
                self._note_site(storage.birth.name, storage.nbytes)

    def _account_for_host(
        self, at: str, live: Iterable[Storage], verdict: Callable[[Storage], _Verdict], rest_of_process: int | None
    ) -> None:
        """Record the use of host memory at its peak within the phase: the OOM killer gives no chance to ask later."""

        def is_there(storage: Storage) -> bool:
            return self._is_on_host(storage, verdict(storage)[0])

        before = _split_rounding((storage, storage.nbytes) for storage in live if is_there(storage))
        events = _split_rounding((storage, delta) for storage, delta in self.counter.events if is_there(storage))
        holdings = self._holdings(things_at_peak(before, list(events)).items(), lambda s: verdict(s)[1], "cpu")
        host_peak = host_standing(holdings, at, rest_of_process)
        if self.host_peak is None or host_peak.total_bytes > self.host_peak.total_bytes:
            self.host_peak = host_peak
        self.tell_host(host_peak)

    def _open_book(self) -> CpuBook | None:
        try:
            book = opened_book()
        except NoBookError as error:
            self.notes.append(
                "CPU memory counts operation results only, without allocations of kernels, gloo and "
                f"other threads: torch's allocator cannot be watched ({error})"
            )
            return None
        self.counter.keep_book(book)
        return book

    def _note_site(self, name: str, nbytes: int) -> None:
        if nbytes > self._unattributed_sites.get(name, 0):
            self._unattributed_sites[name] = nbytes

    def _rest_of_process(self, rounding_bytes: int) -> int | None:
        """Resident memory beyond everything counted, including the rounding of page-locked memory."""
        if not self._in_own_process:
            return None
        booked = self.counter.totals.get("cpu", 0) if self._book is None else self._book.total_bytes()
        # Read once a phase: the ledger's own work after it makes more pages resident.
        self._resident_bytes = host.resident_bytes()
        return self._resident_bytes - booked - rounding_bytes

    def _verdict(self, storage: Storage, phase: Phase, *, is_within: bool = False) -> tuple[Place, Category | None]:
        place, category = self.names.verdict(storage, phase, is_within=is_within)
        known_on_host = place is Place.HOST and self.names.is_placed(storage)
        # A CPU run has one memory: only offloaded tensors, known by identity or site, are on the host.
        if self._device.type == "cpu" and not known_on_host:
            place = Place.DEVICE
        return place, category

    def _note_process(self, step: StepKind, phase: Phase, *, has_peak: bool) -> None:
        if not self._in_own_process:
            return
        peak = host.peak_resident_bytes() if has_peak else None
        old = self._process.get((step, phase))
        if old is not None and peak is not None:
            peak = max(peak, old.peak_rss_bytes or 0)
        pinned = cuda.pinned_bytes() if self._device.type == "cuda" else None
        self._process[step, phase] = host.process_memory(step, phase, self._resident_bytes, peak, pinned)

    def _hook_gradients(self, model: torch.nn.Module) -> list[Any]:
        """Name each gradient when it is accumulated, before any hook of the engine moves or frees it."""

        def accumulated(parameter: torch.Tensor) -> None:
            if parameter.grad is not None:
                self.names.identify([NamedTensor(parameter.grad, Category.GRADIENTS, holder=Holder.MODEL)])

        handles: list[Any] = []
        hooked: set[int] = set()

        def hook(parameters: Iterable[torch.Tensor | None]) -> None:
            for parameter in parameters:
                if parameter is not None and parameter.requires_grad and id(parameter) not in hooked:
                    hooked.add(id(parameter))
                    handles.append(_register_first(parameter, accumulated))

        hook(model.parameters())
        if any(is_wrapper(type(parameter)) for parameter in model.parameters()):
            # FSDP2 replaces a module's sharded parameters with whole ones before its forward pass.
            handles += [
                module.register_forward_pre_hook(lambda inner, _: hook(inner._parameters.values()))
                for module in model.modules()
            ]
        return handles

    def _hook_output(self, model: torch.nn.Module) -> Any:
        return model.register_forward_hook(lambda _module, _inputs, output: self.names.returned(output))

    def _hook_logits(self, model: torch.nn.Module) -> list[Any]:
        """Name the output of the model's head."""
        get_head = getattr(model, "get_output_embeddings", None)
        head = get_head() if get_head is not None else None

        def headed(_module: Any, _inputs: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor):
                self.name_logits(output)

        return [] if head is None else [head.register_forward_hook(headed)]


def _split_rounding(changes: Iterable[Event]) -> Iterator[tuple[_Part, int]]:
    """Yield each change in bytes, and the change in rounding that goes with it."""
    for storage, delta in changes:
        yield (storage, False), delta
        if storage.is_page_locked and (rounding := page_locked_rounding(storage.nbytes)):
            yield (storage, True), rounding if delta > 0 else -rounding


def _category(part: _Part, category_of: Callable[[Storage], Category | None]) -> Category | None:
    storage, is_rounding = part
    return Category.ALLOCATOR_ROUNDING if is_rounding else category_of(storage)


def _peak_of(step: StepKind, phase: Phase) -> str:
    """Name the instant of a phase's peak in a sentence."""
    if phase is Phase.INIT:
        return "the peak of start-up"
    return f"the peak of the {phase} phase of {'the first' if step is StepKind.FIRST else 'a steady'} step"


def _register_first(parameter: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> Any:
    """Hook a parameter's gradient before all existing hooks.

    torch calls hooks in the order of a plain dict (python_hook.cpp, PyDict_Values), which an OrderedDict's
    `move_to_end` does not change: the other hooks are removed and inserted again.
    """
    handle = parameter.register_post_accumulate_grad_hook(hook)
    hooks: dict[int, Any] = parameter._post_accumulate_grad_hooks
    for key in [key for key in hooks if key != handle.id]:
        hooks[key] = hooks.pop(key)
    return handle


def _unchanged(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
