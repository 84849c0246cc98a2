"""Contents of a category at a peak: arithmetic of facts of the trial where it is exact, else the recorded parts.

Records without parts, of older versions and of closed forms, are explained by the closed forms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zerobench.common.vocabulary import Category, Phase, Place
from zerobench.config.derived.known_work import knows_work
from zerobench.estimate.memory.explained import closed_form_params, explained
from zerobench.records.instants import Instant
from zerobench.records.records import PeakPart
from zerobench.records.trials import Trial, parameters_built
from zerobench.report.explain.held_parts import held_part
from zerobench.report.explain.memory_causes import Term, bucket_term, cause, state_term

_ROUNDING = 0.001
"""Bytes beyond the terms that are a smaller part of a category are rounding and padding."""

_WORDS = {
    Category.TEMPORARIES: "temporaries of kernels, optimizer and collectives; scales with the micro batch",
    Category.KERNEL_WORKSPACE: "workspace of running kernels and gloo's copies; not predicted",
    Category.WORKSPACES: "matrix library workspace, independent of the model",
    Category.ALLOCATOR_ROUNDING: "allocator rounding of requested sizes",
    Category.MODEL_BUFFERS: "the module's registered buffers (rotary frequencies, masks)",
    Category.PIPELINE_BUFFERS: "hidden states and their gradients, received and sent by the stage",
    Category.OTHER_OPTIMIZER_STATES: "step counters and the like",
    Category.REST_OF_PROCESS: "interpreter, libraries and stacks",
    Category.OPTIMIZER_STATES_ON_NVME: "swap files of master weights, moments and gradients",
    Category.UNATTRIBUTED: "unattributed",
}


@dataclass(frozen=True)
class Explanation:
    """One category at one instant: its bytes, and what accounts for them."""

    category: Category
    seen_bytes: int
    terms: Sequence[Term] = ()
    depends_on: str | None = None
    """Settings that it depends on, where no term gives its bytes."""
    parts: Sequence[PeakPart] = ()
    """Its largest parts by the record."""

    @property
    def not_explained_bytes(self) -> int:
        """Bytes beyond the terms, or beyond the parts where there are none; below 0 where the terms give more."""
        named = [part.total_bytes for part in self.parts if part.holders or part.site]
        return self.seen_bytes - (sum(term.nbytes for term in self.terms) if self.terms else sum(named))

    @property
    def is_whole(self) -> bool:
        """True where the terms give the bytes, but for rounding."""
        return bool(self.terms) and abs(self.not_explained_bytes) <= _ROUNDING * self.seen_bytes


@dataclass(frozen=True)
class Explainer:
    """Explains the categories of one rank of a trial."""

    trial: Trial
    rank: int

    def instant(self, instant: Instant, place: Place = Place.DEVICE) -> list[Explanation]:
        """Return all categories that have bytes at `instant`, the largest first."""
        sizes = sorted(instant.categories.items(), key=lambda item: -item[1])
        return [self.explain(category, nbytes, instant, place) for category, nbytes in sizes if nbytes]

    def explain(self, category: Category, nbytes: int, instant: Instant, place: Place = Place.DEVICE) -> Explanation:
        """Return what `nbytes` of `category` in `place` at `instant` consist of."""
        terms = tuple(self._terms(category, nbytes, instant, place))
        reason = None if terms else self._reason(category, nbytes, instant)
        return Explanation(category, nbytes, terms, reason, instant.parts.get(category, ()))

    def _terms(self, category: Category, nbytes: int, instant: Instant, place: Place) -> Iterator[Term]:
        if not instant.parts:
            terms = self._by_closed_form(category, nbytes, instant, place)
            if terms:
                yield from terms
                return
        term = state_term(self.trial, category, nbytes, instant.phase) or bucket_term(self.trial, category, nbytes)
        if term is not None:
            yield term

    def _by_closed_form(self, category: Category, nbytes: int, instant: Instant, place: Place) -> list[Term]:
        spec = self.trial.spec
        prediction = spec.prediction.model_copy(update={"rank": self.rank})
        spec = spec.model_copy(update={"prediction": prediction})
        if not _is_as_configured(self.trial, closed_form_params(spec)):
            return []
        on_gpu = spec.prediction.gpu is not None or any(rank.device_type == "cuda" for rank in self.trial.ranks)
        terms = explained(spec, category, nbytes, instant.step, instant.phase, place, on_gpu=on_gpu)
        return [Term(term.nbytes, term.words, term.source) for term in terms]

    def _reason(self, category: Category, nbytes: int, instant: Instant) -> str | None:
        """Return the settings that the category depends on, and who holds the largest part of it."""
        part = instant.largest_part(category)
        words = _WORDS.get(category)
        if words is None and knows_work(self.trial.spec):
            return cause(self.trial, category, nbytes, part=part) or _within_backward(category, instant)
        phrases = [words or _within_backward(category, instant), None if part is None else held_part(part)]
        return "; ".join(phrase for phrase in phrases if phrase) or None


def _is_as_configured(trial: Trial, num_params: int | None) -> bool:
    """Return whether the ranks trained `num_params`, those of the model's config: a script may build it otherwise."""
    built = parameters_built(trial)
    frozen = 0 if built is None else built.total - built.trainable
    return built is None or (built.trainable == num_params and not (frozen and trial.spec.trains_all))


def _within_backward(category: Category, instant: Instant) -> str | None:
    is_backward = (category, instant.phase) == (Category.GRADIENTS, Phase.BACKWARD)
    return "within backward: gradients accumulate and are freed" if is_backward else None
