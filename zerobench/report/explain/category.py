"""What a category of a trial's ledger is made of: closed forms where one gives its bytes, else what it depends on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.memory.deepspeed import Setting, deepspeed_instants
from zerobench.estimate.memory.deepspeed.setting import outline
from zerobench.estimate.memory.deepspeed.stage_3 import gathered_in
from zerobench.estimate.memory.record import beside_frozen, formula_setting, input_tokens, trial_instants
from zerobench.estimate.memory.terms.activations import Activations, Logits
from zerobench.estimate.memory.terms.terms import Bytes
from zerobench.estimate.memory.timeline import device_phases, other_phases
from zerobench.records.instants import Instant
from zerobench.records.trials import Trial, case_of, parameters_built
from zerobench.report.explain.held_parts import held_part
from zerobench.report.explain.memory_causes import MOMENTS, cause
from zerobench.report.explain.passes import pass_accounts
from zerobench.report.explain.terms import Account, Explanation, account_of, explaining

_NO_WORK = (Activations((), (), 0, 0, ""), Logits(0, 0, 0, 0))
"""A pass that leaves nothing: what remains is what the strategy holds."""
_SURELY_THERE = {Category.PARAMETERS, *MOMENTS, Category.REDUCE_BUFFERS, Category.GATHERED_PARAMETERS, Category.STAGING}
"""Categories of which an account is a part wherever it is no larger than they are."""
_OF_A_PASS = {Category.ACTIVATIONS, Category.LOGITS_AND_LOSS}
"""Categories that depend on the batch and the model's dimensions, and not on how its tensors are cut."""
_OF_ANY_MODEL = {Category.PARAMETERS, *MOMENTS, Category.REDUCE_BUFFERS, Category.INPUTS}
"""Categories whose bytes the number of parameters gives, but for padding."""

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


_WORK = (
    "model",
    "precision",
    "optimizer",
    "offload_optimizer",
    "offload_param",
    "micro_batch_size",
    "gradient_accumulation_steps",
    "sequence_length",
    "activation_checkpointing",
    "attention",
)


def knows_work(spec: TrialSpec) -> bool:
    """Whether all that closed forms read of a trial is the work's own; a user's own script may not have told it."""
    return all(map(spec.knows, _WORK))


def _while_reduced(category: Category, instant: Instant) -> str | None:
    is_backward = (category, instant.phase) == (Category.GRADIENTS, Phase.BACKWARD)
    return "within backward: gradients accumulate and are freed" if is_backward else None


@dataclass(frozen=True)
class Explainer:
    """The closed forms of one trial, those of the rank that is looked at."""

    trial: Trial
    rank: int

    @cached_property
    def setting(self) -> Setting | None:
        """None where no closed form describes the trial: another architecture, or a model built with other tensors."""
        spec = self.trial.spec
        if not knows_work(spec):
            return None
        prediction = spec.prediction.model_copy(update={"rank": self.rank})
        try:
            setting = formula_setting(spec.model_copy(update={"prediction": prediction}))
        except UserError:
            return None
        on_gpu = spec.prediction.gpu is not None or any(rank.device_type == "cuda" for rank in self.trial.ranks)
        built = parameters_built(self.trial)
        as_built = set() if built is None else {built.trainable, built.total if spec.trains_all else built.trainable}
        return replace(setting, on_gpu=on_gpu) if as_built <= {setting.num_params} else None

    @cached_property
    def outline(self) -> Setting | None:
        """All that is known of a model without a closed form: what depends on the number of trained parameters alone,
        but for padding; None without DeepSpeed.
        """
        case = case_of(self.trial)
        if case is None or not case.trained or not self.trial.spec.knows("precision"):
            return None
        return outline(case, self.trial.spec.optimizer, self.rank)

    def explain(self, category: Category, nbytes: int, instant: Instant, place: Place = Place.DEVICE) -> Explanation:
        """`category`, of which `nbytes` lie in `place` at `instant`."""
        accounts = self._accounts(category, instant, place)
        between = category not in _OF_A_PASS
        terms = explaining(nbytes, accounts, part=category in _SURELY_THERE, between=between)
        explained = Explanation(category, nbytes, terms)
        if explained.is_whole:
            return explained
        parts = instant.parts.get(category, ())
        if terms:
            return replace(explained, parts=parts)
        return replace(explained, depends_on=self._reason(category, nbytes, instant), parts=parts)

    def _reason(self, category: Category, nbytes: int, instant: Instant) -> str | None:
        """What the category depends on, and who holds the largest part of it."""
        part = instant.largest_part(category)
        words = _WORDS.get(category)
        if words is None and knows_work(self.trial.spec):
            return cause(self.trial, category, nbytes, part=part) or _while_reduced(category, instant)
        phrases = [words or _while_reduced(category, instant), None if part is None else held_part(part)]
        return "; ".join(phrase for phrase in phrases if phrase) or None

    def _accounts(self, category: Category, instant: Instant, place: Place) -> Iterator[Account]:
        spec, setting = self.trial.spec, self.setting or self.outline
        if setting is None:
            return
        if category in _OF_A_PASS:
            if knows_work(spec):
                yield from pass_accounts(spec, category, instant.phase)
        elif self.setting is not None or category in _OF_ANY_MODEL:
            yield from self._named(setting, category, instant, place)
        if (category, instant.step, place) == (Category.GATHERED_PARAMETERS, StepKind.STEADY, Place.DEVICE):
            yield from (account_of(terms, category) for terms in gathered_in(setting, instant.phase))

    def _named(self, setting: Setting, category: Category, instant: Instant, place: Place) -> Iterator[Account]:
        """The category at each instant of the phase that the formulas name."""
        key = (setting.num_params, instant.step, place)
        if key not in self._known:
            spec, step = self.trial.spec, instant.step
            if self.setting is None:
                at = beside_frozen(spec, setting, deepspeed_instants(setting, step))[place]
            else:
                at = trial_instants(spec, setting, step)[place]
            tokens = input_tokens(spec) if knows_work(spec) else 0
            is_device = place is Place.DEVICE
            self._known[key] = device_phases(at, *_NO_WORK, tokens) if is_device else other_phases(at)
        yield from (account_of(terms, category) for terms in self._known[key][instant.phase])

    @cached_property
    def _known(self) -> dict[tuple[int, StepKind, Place], Mapping[Phase, Sequence[Bytes]]]:
        """The instants that the formulas name, as far as they were asked for."""
        return {}

    def instant(self, instant: Instant, place: Place = Place.DEVICE) -> list[Explanation]:
        """All categories that hold anything at `instant`, the largest first."""
        held = sorted(instant.categories.items(), key=lambda item: -item[1])
        return [self.explain(category, nbytes, instant, place) for category, nbytes in held if nbytes]
