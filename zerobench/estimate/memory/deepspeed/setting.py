"""Arguments of DeepSpeed's formulas: a configuration, the model's tensors, a rank, an optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from zerobench.common.units import brief
from zerobench.common.vocabulary import Category, StepKind
from zerobench.config.deepspeed.case import Case
from zerobench.config.derived.sharding import sub_groups
from zerobench.config.trial.optimizers import OPTIMIZERS, Optimizer, OptimizerInfo
from zerobench.config.trial.trial import Offload
from zerobench.estimate.memory.deepspeed.gathers import Gathers
from zerobench.estimate.memory.terms.terms import Bytes, Term, Terms, add, hold, of_elements

ALLREDUCE_ELEMENTS = 500_000_000
"""Elements all-reduced at a time without ZeRO (runtime/engine.py, MEMORY_OPT_ALLREDUCE_SIZE); no key sets it."""
DRAWN_ELEMENTS = 2**24
"""Initial weights that are drawn at a time (zerobench/rank/training/weights.py)."""
_MOST_PIECES = 4096
_FIRST_FILLS = 8
"""Buckets from the begin of backward that are looked at beside the fullest: later ones find fewer blocks left."""
MODEL_TENSORS = "the model's tensors"
CLONES = "clones of its tensors"
TENSOR_CASTS = "fp32 copies made in the step"
WHOLE = "kept whole until the end of backward"
"""How words begin of what lies there tensor by tensor: the first, as the model was built."""
NOT_HANDED_ON = "not yet in the bucket"
"""How words begin of gradients that are handed on from the model's first one on."""
TOO_LARGE = "larger than the bucket, kept until the end of backward"
"""How words begin of gradients of such tensors, as they come."""
ALIGNMENT = 2
"""Elements that a flat partition is a multiple of (stage_1_and_2.py, nccl_start_alignment_factor)."""


@dataclass(frozen=True)
class Instants:
    """Model states and buffers of one place on one rank, at the instants of one step that can be its peaks.

    Activations, logits and inputs are not in them: they are laid over the instants of forward and backward.
    """

    init: Sequence[Bytes]
    """Instants of the engine's start-up, the last one its end."""
    gathering: Bytes
    """In forward, before the loss: parameters that were gathered ahead are being cut from their bucket."""
    forward: Bytes
    """While the last micro batch's loss is computed, and at the end of forward."""
    first_gradient: Bytes
    """The head's gradient has been computed, and nothing has been done with it; all activations are there."""
    bucketed: Bytes
    """The head's gradient has been handed on; nearly all activations are there."""
    reduction: Sequence[Bytes]
    """No activation is left; gradients are being reduced."""
    backward_end: Bytes
    step: Sequence[Bytes]
    """Instants of the update, the last one its end."""
    begun: Bytes | None = None
    """While the loss's gradient is computed, where backward begins with other bytes than forward ends with."""
    filled: Mapping[int, Bytes] = field(default_factory=dict)
    """While a full bucket is reduced and backward is not at its end, by the elements whose gradients are there."""

    def beside(self, held: Bytes) -> Instants:
        """The same with what lies there for the whole run."""
        filled = {passed: add(held, instant) for passed, instant in self.filled.items()}
        with_it: dict[str, Any] = {
            name: add(held, instants) if isinstance(instants, Mapping) else tuple(add(held, each) for each in instants)
            for name, instants in vars(self).items()
            if instants is not None
        }
        return Instants(**with_it | {"filled": filled})


def constant(held: Bytes) -> Instants:
    """A place in which the same bytes lie for the whole run."""
    return Instants((held,), held, held, held, held, (), held, (held,))


NOTHING = constant({})
"""A place that nothing lies in."""


@dataclass(frozen=True)
class Setting:
    """One rank of a trial. Sizes are elements unless their name ends in bytes."""

    case: Case
    tensors: tuple[int, ...]
    """Elements of each parameter tensor that is trained, in the model's order."""
    optimizer: Optimizer
    rank: int = 0
    on_gpu: bool = True
    """torch.optim runs its for-each version on GPUs, a loop over tensors on CPUs."""
    tied_head: bool = False
    """Whether the output head is the token embedding, the first of the tensors."""
    capacity_bytes: int | None = None
    """Memory of the device; None where it is no bound."""
    zero_init: bool = True
    """Whether stage 3 partitions the model as it is built."""
    linear_elements: int = 0
    """Of weights that autograd holds gathered from forward to backward, where torch's linear layers run at stage 3."""
    loss_in_head: bool = False
    """Whether the loss is computed within the head's call, for which it is gathered."""
    block_again: int = 0
    """Elements of a block that stage 3 gathers once more where it runs again, and that autograd holds from then on."""
    frozen: tuple[int, ...] = ()
    """Elements of each parameter tensor that is not trained, in the model's order. There are neither gradients nor
    states of it, and no flat copy. Codes count as elements of the model's type."""
    whole: tuple[int, ...] = ()
    """All of them in the model's order, where some are trained and some not."""
    trains_head: bool = True
    trains_first: bool = True
    """Whether the first of the tensors, the embedding, is trained."""
    used: tuple[int, ...] = ()
    """The numbers of `tensors` in the order of use; empty: that order is the model's."""
    gathers: Gathers | None = None
    """What stage 3 gathers in a micro-batch; None where no more is known of the model than its tensors."""
    coded: int = 0
    """Of the elements that are not trained, those that codes lie in."""
    scales_bytes: int = 0
    """Of what they are scaled by, which no strategy divides."""
    trains_wide: bool = False
    """Whether what is trained is in fp32 beside a 16-bit model that is not."""

    @property
    def trained_element(self) -> int:
        """Bytes of an element of what is trained, and of its gradient."""
        return 4 if self.trains_wide else self.case.element

    @property
    def num_params(self) -> int:
        """All parameters that are trained."""
        return self.case.num_params

    @property
    def model(self) -> tuple[int, ...]:
        """Elements of each parameter tensor: what stage 3 gathers."""
        return self.whole or self.tensors

    @cached_property
    def model_elements(self) -> int:
        """All parameters."""
        return sum(self.model)

    def frozen_parameters(self, ranks: int) -> Terms:
        """Frozen parameters, each tensor divided among so many ranks."""
        element, of = self.case.element, f" / {ranks} ranks" if ranks > 1 else ""
        whole, held = sum(self.frozen), sum(-(-tensor // ranks) for tensor in self.frozen)
        exact = element * whole // ranks
        codes = element * self.coded // ranks
        return Terms(
            Term(Category.PARAMETERS, codes, f"{element * self.coded:,} bytes of codes{of}"),
            Term(Category.PARAMETERS, exact - codes, f"{element} bytes x {whole - self.coded:,} frozen parameters{of}"),
            Term(Category.PARAMETERS, element * held - exact, "padding of their parts"),
            Term(Category.MODEL_BUFFERS, self.scales_bytes, "scales of frozen matrices"),
        )

    @cached_property
    def flat_partition(self) -> int:
        """One rank's part of the flat parameters at stages 1 and 2, padded to two elements a rank.

        stage_1_and_2.py, __init__: nccl_start_alignment_factor * world size. `parameter_alignment` is not in it.
        """
        return -(-self.num_params // (ALIGNMENT * self.case.world_size)) * ALIGNMENT

    @cached_property
    def sharded(self) -> int:
        """One rank's part at stage 3, each tensor padded to the number of ranks.

        partition_parameters.py, _aligned_size and _partition_numel.
        """
        return sum(self.parts)

    @property
    def partition(self) -> int:
        """Parameters whose optimizer states one rank keeps."""
        return (self.num_params, self.flat_partition, self.flat_partition, self.sharded)[self.case.stage]

    @cached_property
    def own_tensors(self) -> tuple[tuple[int, int], ...]:
        """Elements of each tensor in this rank's flat partition, and those inside it.

        stage_1_and_2.py, get_partition_info. `round_robin_gradients` deals tensors out otherwise and is not followed.
        """
        start, end = self.rank * self.flat_partition, (self.rank + 1) * self.flat_partition
        tensors, position = [], 0
        for tensor in self.tensors:
            inside = min(position + tensor, end) - max(position, start)
            if inside > 0:
                tensors.append((tensor, inside))
            position += tensor
        return tuple(tensors)

    @property
    def largest_tensor(self) -> int:
        """Elements of the largest tensor that is trained."""
        return max(self.tensors)

    @property
    def head(self) -> int:
        """Elements of the output head, which a tied model has as its first tensor."""
        return self.model[0 if self.tied_head else -1]

    @property
    def first_gradient(self) -> int:
        """Elements of the gradient that backward makes first: the head's, or where it is frozen the last one's."""
        return self.head if self.trains_head else self.tensors[-1]

    @property
    def first_gradient_whole(self) -> Terms:
        """That gradient, before anything is done with it."""
        what = "the first gradient of backward, the head's"
        return of_elements(Category.GRADIENTS, self.trained_element, self.first_gradient, what)

    def tied_gradients(self, copies: int) -> Terms:
        """So many of three: autograd keeps a tied head's gradient until the embedding's is there, and then sums them;
        nothing of an untied head.
        """
        elements = self.head if self.tied_head and self.trains_head else 0
        what = "a tied head's gradient" + ", the embedding's and their sum" * (copies > 1)
        return of_elements(Category.GRADIENTS, copies * self.case.element, elements, what)

    @cached_property
    def parts(self) -> tuple[int, ...]:
        """Elements of each tensor's part on one rank at stage 3."""
        return tuple(self.in_part(tensor) for tensor in self.tensors)

    def in_part(self, elements: int) -> int:
        """One rank's share of so many elements at stage 3, without padding of each tensor."""
        return -(-elements // self.case.world_size)

    @cached_property
    def sub_groups(self) -> tuple[int, ...]:
        """Elements of the groups of tensors that stage 3 updates at a time."""
        return sub_groups(self.parts, int(self.case.zero("sub_group_size")))

    @property
    def kept(self) -> tuple[int, ...]:
        """Those of them whose states stay on the device though the optimizer is offloaded."""
        return self.sub_groups[: self.case.kept_sub_groups(len(self.sub_groups))]

    @property
    def moved(self) -> tuple[int, ...]:
        """The others."""
        return self.sub_groups[len(self.kept) :]

    @property
    def sub_group(self) -> int:
        """Elements of the largest of the sub-groups."""
        return max(self.sub_groups)

    def fills(self, limit: int) -> list[int]:
        """The elements that lie in a bucket of `limit` elements each time that it is reduced."""
        return [sum(fill) for fill in self.filled(limit)]

    def filled(self, limit: int) -> list[list[int]]:
        """The tensors of each fill."""
        return [[self.tensors[number] for number in fill] for fill in self.filled_with(limit)]

    def filled_with(self, limit: int) -> list[list[int]]:
        """The numbers of the tensors of each fill, as gradients come: in the reverse of the order of use; as the model
        holds them where they are reduced at backward's end (stage_1_and_2.py, reduce_gradients).

        A tensor larger than the bucket is reduced alone (extra_large_param_to_reduce).
        """
        fills, room = list[list[int]](), 0
        as_held = range(len(self.tensors))
        for number in reversed(self.used or as_held) if self.streams_gradients else as_held:
            tensor = self.tensors[number]
            if not fills or tensor > room:
                fills.append([])
                room = limit
            fills[-1].append(number)
            room -= tensor
        return fills

    def telling(self, fills: Sequence[int]) -> list[int]:
        """Numbers of the fills that may find most on the device beside them, but for the last: the first ones, while
        blocks are left, and the fullest.
        """
        fullest = fills.index(max(fills))
        return [number for number in sorted({*range(_FIRST_FILLS), fullest}) if number < len(fills) - 1]

    @property
    def streams_gradients(self) -> bool:
        """Return whether gradients are reduced within backward and not at its end (process_gradients)."""
        return self.case.stage != 1 or bool(self.case.zero("overlap_comm"))

    @property
    def optimizer_info(self) -> OptimizerInfo:
        """Facts of the optimizer."""
        return OPTIMIZERS[self.optimizer]

    def share(
        self,
        category: Category,
        element: int,
        elements: int,
        what: str = "",
        source: str = "",
        *,
        padding: str = "padding of the partition",
    ) -> Terms:
        """`element` bytes of each parameter, or of those that are one rank's, of which there are `elements` padded."""
        ranks = self.case.world_size if elements < self.num_params else 1
        if elements * ranks < self.num_params:
            return of_elements(category, element, elements, what or "the groups updated so far", source)
        prefix, of = f"{what}: " if what else "", f" / {ranks} ranks" if ranks > 1 else ""
        whole, which = element * self.num_params // ranks, "trained parameters" if self.frozen else "parameters"
        return Terms(
            Term(category, whole, f"{prefix}{element} bytes x {self.num_params:,} {which}{of}", source),
            Term(category, element * elements - whole, f"{prefix}{padding}", source),
        )

    def master_and_moments(self, tensors: Sequence[int], step: StepKind | None) -> Terms:
        """fp32 master weights and, from the first step on, moments; `step` None is before it."""
        states = self.share(Category.MASTER_WEIGHTS, 4, sum(tensors))
        return states if step is None else add(states, self.moments(tensors))

    def moments(self, tensors: Sequence[int], padding: str = "padding of the partition") -> Terms:
        """States that the optimizer keeps of `tensors`, each as it updates it: by itself, or flattened with others."""
        count = sum(tensors)
        sizes = self.optimizer_info.states_of(tensors).items()
        words = "{:.4g} bytes x {:,} elements, scales among them"
        return add(
            *(
                self.share(category, 4, count, padding=padding)
                if nbytes == 4 * count
                else hold(category, nbytes, words.format(nbytes / count, count))
                for category, nbytes in sizes
                if nbytes
            )
        )

    def update_temporaries(
        self, tensors: Sequence[int], *, on_host: bool = False, by: Optimizer | None = None
    ) -> Terms:
        """Temporaries of the step of the optimizer, or of the one named, over fp32 `tensors`."""
        in_loop = on_host or not self.on_gpu
        optimizer = by or self.optimizer
        nbytes = OPTIMIZERS[optimizer].temporaries.nbytes(tensors, on_gpu=not in_loop)
        elements = max(tensors) if in_loop else sum(tensors)
        words = f"temporaries of the {optimizer} step: {nbytes / elements:g} bytes x {elements:,} elements"
        return hold(Category.TEMPORARIES, nbytes, words)

    def norm(self, elements: int) -> Terms:
        """The fp64 temporary in which a gradient's norm is taken (runtime/utils.py, get_norm_dtype)."""
        return of_elements(Category.TEMPORARIES, 8, elements, "a gradient's norm, taken in fp64")

    def bucket(self, source: str, *, is_double: bool = False) -> Terms:
        """The reduce bucket."""
        case = self.case
        if not case.bucket_elements:
            return Terms()
        each = f"reduce_bucket_size {brief(case.bucket_elements)} x {case.bucket_bytes // case.bucket_elements} bytes"
        words = f"{each} x 2 (overlap_comm)" if is_double else each
        return hold(Category.REDUCE_BUFFERS, (2 if is_double else 1) * case.bucket_bytes, words, source)

    def copied(self, element: int, limit: int, what: str, source: str, *, fill: int | None = None) -> Terms:
        """A bucket's fill once more, flattened to be reduced: the largest fill, and at other instants another."""
        copy_of = partial(of_elements, Category.REDUCE_BUFFERS, element, what=what, source=source)

        def others() -> Iterator[Term]:
            for elements in sorted({*self.fills(limit)}, reverse=True):
                yield from copy_of(elements).terms

        return copy_of(max(self.fills(limit)) if fill is None else fill, others=others)

    @property
    def offloads(self) -> bool:
        """Return whether the optimizer's states leave the device."""
        return self.case.offload_optimizer is not Offload.NONE


def outline(case: Case, optimizer: Optimizer, rank: int = 0) -> Setting:
    """The setting of a model of which no more is known than how many parameters are trained, and how many not.

    They lie in pieces that DeepSpeed all-reduces or updates at a time.
    """
    known = {0: ALLREDUCE_ELEMENTS, 3: int(case.zero("sub_group_size"))}.get(case.stage) or case.trained
    piece = max(known, case.trained // _MOST_PIECES, 1)
    count, rest = divmod(case.trained, piece)
    tensors = (*[piece] * count, *([rest] if rest or not count else []))
    frozen = (case.num_params - case.trained,) if case.num_params > case.trained else ()
    return Setting(replace(case, num_params=case.trained), tensors, optimizer, rank, frozen=frozen)
