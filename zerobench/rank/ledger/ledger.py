"""The ledger: over each phase of a step, what every byte of device and host memory was for.

    ledger = Ledger("cuda:0", walk=lambda: walk_deepspeed(engine))
    with ledger.tracking():
        with ledger.phase(StepKind.STEADY, Phase.FORWARD):
            loss = model(batch)

Totals come from a counter that knows no names (the book of torch's allocator on a CPU, the caching allocator on CUDA),
names from naming.py, and what the names do not cover has a line of its own. On a CPU run, device and host are the same
memory: what DeepSpeed's offload holds is named `host` by identity, everything else is `device`.
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
from zerobench.rank.ledger.cpu_book import CpuBook, opened_book
from zerobench.rank.ledger.cpu_book_build import NoBookError
from zerobench.rank.ledger.engine_tensors import NamedTensor
from zerobench.rank.ledger.held import Holdings, host_standing
from zerobench.rank.ledger.ledger_rows import LedgerRows
from zerobench.rank.ledger.naming import Names
from zerobench.rank.ledger.peak_parts import largest_parts
from zerobench.rank.ledger.random_states import told_of_random_states
from zerobench.rank.ledger.replay import Composition, replay, things_at_peak
from zerobench.rank.ledger.sites import Site, SiteFinder
from zerobench.rank.ledger.storages import Event, Storage, StorageCounter, is_wrapper
from zerobench.records.records import Holder, HostStanding, MemoryCourse, MemoryRow, PeakPart, ProcessMemory

_NOTED_BYTES = 64 * 1024
"""Nameless storages below this are counted and not commented on."""
_UNSEEN = "no tensor seen (another thread, or C++)"
_Verdict = tuple[Place, Category | None]
_Part = tuple[Storage, bool]
"""A storage, or what page-locking rounds it up by."""


class Ledger:
    """Memory of one rank by phase, place and category.

    `device` is torch's name of the training device; `walk` yields the engine's tensors with their names and is asked
    at the end of each phase. `in_own_process` says whether what the kernel tells of this process is the trial's: of
    a simulated one it is not. `device_totals` are those of a model of the device's allocator over the phase under way,
    where there is one. `sites` finds places of birth in code that the table of known ones does not hold.
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
        self._unattributed_sites: dict[str, int] = {}
        self._logits_node: int | None = None
        self._model: weakref.ref[torch.nn.Module] | None = None
        counts_all = in_own_process or device.type == "cpu"
        self.notes: list[str] = [] if counts_all else uncounted_host_notes(os.environ)
        """What could not be counted, and why."""
        self.peak_occupied_bytes: int | None = None
        """Of the phase that ended last: the most that a CUDA allocator's segments held in which anything lay."""
        self.host_peak: HostStanding | None = None
        """What the host held when it held most, of all phases so far."""
        self.tell_host: Callable[[HostStanding], object] = lambda _: None
        """Hears what the host held at the peak of each phase, as it ends."""
        self._book = self._open_book() if in_own_process else None

    @contextmanager
    def tracking(self, model: torch.nn.Module | None = None) -> Iterator[None]:
        """Count storages while open; storages born since the last time are looked up first.

        With `model`, its gradients are named the moment they are accumulated, before an engine takes them away.
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
                stack.enter_context(told_of_random_states(lambda state: self.name_kept([state])))
            yield

    @contextmanager
    def watching(self, model: torch.nn.Module | None) -> Iterator[None]:
        """See who is born where in a step that is not accounted for, the last one before one that is.

        A thread of gloo's may let go of what it reduced there only within the next step. What is of a short life has
        no name in that one.
        """
        with self.tracking(), nullcontext() if model is None else self._hook_output(model):
            del model
            yield
        self.names.end_of(Phase.STEP)

    @contextmanager
    def phase(self, step: StepKind, phase: Phase) -> Iterator[None]:
        """Account for what is allocated and freed inside; call within `tracking`.

        A phase entered twice for the same step (gradient accumulation) keeps its larger peak and its last live bytes.
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
        """Look at the thread that enters this as at the one that entered the phase, which waits for it meanwhile."""
        hooks = torch.autograd.graph.saved_tensors_hooks(self.names.saved, _unchanged)
        with self.counter.in_another_thread(), hooks:
            yield

    def look_back(self, step: StepKind, phase: Phase) -> None:
        """Account for a phase that is over and that nobody watched, by the history that the CUDA allocator kept of it.

        What stands is named by identity; what was taken and given back is a temporary.
        """
        self.counter.adopt_reachable()
        self.counter.start_phase()
        self.names.walked(self._walk())
        self._account(step, phase)

    def knows_births_of(self, earlier: StorageCounter) -> None:
        """Take from `earlier`, which looked on at start-up, where was born what stands since then.

        Where, and no more: what a storage is for was decided without it, of start-up as it was looked back on. But
        the buckets of gradients that DDP made in C++ nobody reaches, so they are counted as it saw them.
        """

        def born_before(key: int) -> Site | None:
            storage = earlier.live.get(key)
            return None if storage is None else replace(storage.birth, proves=None)

        self.counter.born_before = born_before
        self.counter.adopt_of(earlier, lambda s: s.device == "cuda" and s.birth.proves is Category.GRADIENTS)

    def held(self, phase: Phase) -> Holdings:
        """What the tensors that live now hold on the device, within `phase`; what has no name is unattributed."""
        kind = self._device.type
        return self._held_now(phase, lambda storage, place: place is Place.DEVICE and storage.device == kind, kind)

    def host_standing(self, phase: Phase, at: str) -> HostStanding:
        """What is held of the host now; of CPU ranks, whose device is the host, that is all."""
        held = self._held_now(phase, self._is_on_host, "cpu")
        rest = host.resident_bytes() - held.by_category.total() if self._in_own_process else None
        standing = host_standing(held, at, rest)
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
        there = _in_blocks((s, s.nbytes) for s, (place, _) in verdicts.items() if is_there(s, place))
        return self._holdings(there, lambda storage: verdicts[storage][1], device_type)

    def _holdings(
        self, parts: Iterable[tuple[_Part, int]], category_of: Callable[[Storage], Category | None], device_type: str
    ) -> Holdings:
        held = Holdings()
        for part, nbytes in parts:
            category = _category(part, category_of) or Category.UNATTRIBUTED
            held.add(nbytes, category, _seen_birth(part[0]), self.names.holder_words(part[0], category))
        model = None if self._model is None else self._model()
        if model is not None:
            held.add_states(model, device_type)
        return held

    def _is_on_host(self, storage: Storage, place: Place) -> bool:
        return storage.device == "cpu" and (place is Place.HOST or self._device.type == "cpu")

    def name_inputs(self, tensors: Iterable[torch.Tensor]) -> None:
        """The batch: known by identity, since data loaders allocate it outside the phases."""
        self.names.identify(NamedTensor(t, Category.INPUTS, holder=Holder.LOOP) for t in tensors)

    def name_kept(self, tensors: Iterable[torch.Tensor]) -> None:
        """What a model's output keeps of its forward pass, also once the backward pass is over."""
        self.names.identify(NamedTensor(t, Category.ACTIVATIONS, holder=Holder.LOOP) for t in tensors)

    def name_logits(self, logits: torch.Tensor) -> None:
        """What the model handed to a loss that is computed outside of it."""
        self._logits_node = None if logits.grad_fn is None else logits.grad_fn._sequence_nr()
        self.names.identify([NamedTensor(logits, Category.LOGITS_AND_LOSS, holder=Holder.LOOP)])

    def mark_loss(self, loss: torch.Tensor) -> None:
        """The forward pass ended in `loss`; the graph between it and the logits belongs to the loss."""
        self.names.mark_loss_graph(loss, self._logits_node)
        self._logits_node = None

    def forget(self, step: StepKind) -> None:
        """Drop the rows of a kind of step, so that only its last repetition is reported."""
        self._rows.forget(step)
        self._courses.forget(step)
        self._process = {key: row for key, row in self._process.items() if key[0] is not step}

    def leave_process(self) -> None:
        """Look no more at what the kernel tells of the process: malloc keeps freed memory from now on."""
        self._in_own_process = False

    def rest(self) -> None:
        """Let torch allocate as if nobody looked, until `tracking` begins again."""
        if self._book is not None:
            self._book.close()

    def peak_bytes(self, step: StepKind, place: Place) -> int | None:
        """The largest total within a phase of that kind of step, start-up apart; None where nothing was tracked."""
        return self._rows.peak_bytes(step, place)

    def parts_at_peak(self, step: StepKind, place: Place) -> dict[str, int]:
        """Bytes by category at the largest peak within that kind of step, start-up being part of the first one."""
        return self._rows.parts_at_peak(step, place)

    def rows(self) -> list[MemoryRow]:
        """All rows so far, a `total` row for each phase and place among them."""
        return self._rows.all()

    def courses(self) -> list[MemoryCourse]:
        """Device memory by category over start-up and each phase of the steady step."""
        return self._courses.all()

    def process_rows(self) -> list[ProcessMemory]:
        """What the kernel said of the process at the end of each phase."""
        return list(self._process.values())

    def unattributed_sites(self, count: int = 5) -> list[tuple[str, int]]:
        """Where the largest storages without a name were allocated, with their bytes at a phase's end or peak."""
        ranked = sorted(self._unattributed_sites.items(), key=lambda item: -item[1])
        return ranked[:count]

    def unattributed_notes(self) -> list[str]:
        """A sentence on each of the largest; below a size they are counted and not commented on."""
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
            seen = dict.fromkeys([*live, *(storage for storage, _ in events)])
            unseen_place = Place.DEVICE if self._device.type == "cpu" else Place.HOST
            booked = BookedPhase(self._book.pages(), seen, verdict, unseen_place)
            self._note_site(_UNSEEN, booked.largest_unseen_bytes())
        for place in (Place.DEVICE, Place.HOST):
            if place is Place.DEVICE and self._device.type == "cuda":
                here = cuda.composition(self._device, live, events, category_of)
            elif booked is not None:
                here = booked.composition(place)
            else:
                here = replay(
                    _in_blocks((s, s.nbytes) for s in live if verdict(s)[0] is place),
                    list(_in_blocks((s, delta) for s, delta in events if verdict(s)[0] is place)),
                    lambda part: _category(part, category_of),
                    lambda part: None if part[1] else part[0],
                )
            totals = self._device_totals() if place is Place.DEVICE else None
            if totals is not None:
                here = cuda.with_totals(here, totals)
            if place is Place.DEVICE:
                self.peak_occupied_bytes = here.peak_occupied
                self._courses.enter(step, phase, here)
            rest = None
            if place is Place.HOST:
                rest = self._rest_of_process(here.live[Category.ALLOCATOR_ROUNDING])
                self._account_for_host(_peak_of(step, phase), live, verdict, rest)
            self._rows.enter((step, phase, place), here, rest, self._largest_parts(here))
        for storage, (_, category) in verdicts.items():
            if category is None:
                self._note_site(storage.birth.name, storage.nbytes)

    def _largest_parts(self, here: Composition[Category | None]) -> dict[Category, list[PeakPart]]:
        if here.walk is None:
            return {}
        return largest_parts(here.walk, self.names.holders, self.names.saver)

    def _account_for_host(
        self, at: str, live: Iterable[Storage], verdict: Callable[[Storage], _Verdict], rest_of_process: int | None
    ) -> None:
        """Take down what the host held when it held most within the phase: where it is refused, nothing can ask."""

        def is_there(storage: Storage) -> bool:
            return self._is_on_host(storage, verdict(storage)[0])

        before = _in_blocks((storage, storage.nbytes) for storage in live if is_there(storage))
        events = _in_blocks((storage, delta) for storage, delta in self.counter.events if is_there(storage))
        held = self._holdings(things_at_peak(before, list(events)).items(), lambda s: verdict(s)[1], "cpu")
        host_peak = host_standing(held, at, rest_of_process)
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
        """What is resident beyond all that is counted, the rounding of page-locked memory included."""
        if not self._in_own_process:
            return None
        booked = self.counter.totals.get("cpu", 0) if self._book is None else self._book.total_bytes()
        return host.resident_bytes() - booked - rounding_bytes

    def _verdict(self, storage: Storage, phase: Phase, *, is_within: bool = False) -> tuple[Place, Category | None]:
        place, category = self.names.verdict(storage, phase, is_within=is_within)
        known_on_host = place is Place.HOST and self.names.is_placed(storage)
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
        self._process[step, phase] = host.process_memory(step, phase, peak, pinned)

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
            # FSDP2 exchanges a module's sharded parameters for whole ones before its forward pass.
            handles += [
                module.register_forward_pre_hook(lambda inner, _: hook(inner._parameters.values()))
                for module in model.modules()
            ]
        return handles

    def _hook_output(self, model: torch.nn.Module) -> Any:
        return model.register_forward_hook(lambda _module, _inputs, output: self.names.returned(output))

    def _hook_logits(self, model: torch.nn.Module) -> list[Any]:
        """Name what the model's output head gives."""
        get_head = getattr(model, "get_output_embeddings", None)
        head = get_head() if get_head is not None else None

        def headed(_module: Any, _inputs: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor):
                self.name_logits(output)

        return [] if head is None else [head.register_forward_hook(headed)]


def _seen_birth(storage: Storage) -> Site | None:
    """Where it was born, by whoever saw it."""
    born: Site | None = None if storage.is_adopted else storage.birth
    return born


def _in_blocks(changes: Iterable[Event]) -> Iterator[tuple[_Part, int]]:
    """Each change in bytes, and the change in rounding that goes with it."""
    for storage, delta in changes:
        yield (storage, False), delta
        if storage.is_page_locked and (rounding := page_locked_rounding(storage.nbytes)):
            yield (storage, True), rounding if delta > 0 else -rounding


def _category(part: _Part, category_of: Callable[[Storage], Category | None]) -> Category | None:
    storage, is_rounding = part
    return Category.ALLOCATOR_ROUNDING if is_rounding else category_of(storage)


def _peak_of(step: StepKind, phase: Phase) -> str:
    """The instant of a phase's peak, for a sentence."""
    if phase is Phase.INIT:
        return "the peak of start-up"
    return f"the peak of the {phase} phase of {'the first' if step is StepKind.FIRST else 'a steady'} step"


def _register_first(parameter: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> Any:
    """Hook a parameter's gradient before all that others have hooked to it.

    torch calls them in the order in which a plain dict would hold them (python_hook.cpp, PyDict_Values), of which an
    OrderedDict's `move_to_end` changes nothing: the others are taken out and put in again.
    """
    handle = parameter.register_post_accumulate_grad_hook(hook)
    hooks: dict[int, Any] = parameter._post_accumulate_grad_hooks
    for key in [key for key in hooks if key != handle.id]:
        hooks[key] = hooks.pop(key)
    return handle


def _unchanged(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
