"""What a category of a trial's ledger is made of: closed forms where one gives its bytes, else what it depends on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from zerobench.errors import UserError
from zerobench.formulas.deepspeed import Setting
from zerobench.formulas.record import formula_setting
from zerobench.formulas.tensors import quantised_elements
from zerobench.records import Category, Phase, Place
from zerobench.report.ds_case import case_of
from zerobench.report.explain import fully_sharded, partly_trained
from zerobench.report.explain.states import MOMENTS, states_accounts
from zerobench.report.explain.terms import Account, Explained, account, nearest_account
from zerobench.report.explain.work import Asked, bucket_terms, has_dimensions, work_accounts
from zerobench.report.memory_causes import cause
from zerobench.report.memory_view import Instant
from zerobench.report.trials import Trial, num_params
from zerobench.spec.adapter import base_of
from zerobench.spec.trial import TrialSpec

_STATES = {Category.PARAMETERS, Category.GRADIENTS, *MOMENTS}
_SURELY_THERE = {Category.PARAMETERS, *MOMENTS, Category.REDUCE_BUFFERS, Category.GATHERED_PARAMETERS, Category.STAGING}
"""Categories of which an account is a part wherever it is no larger than they are."""
_OF_A_PASS = {Category.ACTIVATIONS, Category.LOGITS_AND_LOSS}
_OF_A_BATCH = {*_OF_A_PASS, Category.INPUTS}
"""Categories that depend on the batch and the model's dimensions, and not on how its tensors are cut."""

_WORDS = {
    Category.TEMPORARIES: "made and freed by kernels, the optimizer and collectives; it depends on the micro batch",
    Category.KERNEL_WORKSPACE: "what kernels take while they run, and gloo's copies; no prediction knows it",
    Category.WORKSPACES: "what the matrix library works in, the same for every model",
    Category.ALLOCATOR_ROUNDING: "what the allocator hands out beyond what is asked",
    Category.MODEL_BUFFERS: "the module's registered buffers (rotary frequencies, masks, what codes are scaled by)",
    Category.PIPELINE_BUFFERS: "what the stage receives and sends: hidden states and their gradients",
    Category.OTHER_OPTIMIZER_STATES: "step counters and the like",
    Category.REST_OF_PROCESS: "interpreter, libraries and stacks",
    Category.OPTIMIZER_STATES_ON_NVME: "swap files of master weights, moments and gradients",
    Category.UNATTRIBUTED: "no name was found for it",
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


@dataclass(frozen=True)
class Explainer:
    """The closed forms of one trial, those of the rank that is looked at."""

    trial: Trial
    rank: int

    @cached_property
    def setting(self) -> Setting | None:
        """None where no closed form describes the trial: another architecture, or a model built with other tensors."""
        spec = self.trial.spec
        if not knows_work(spec) or not self._trains_all:
            return None
        prediction = spec.prediction.model_copy(update={"rank": self.rank})
        try:
            setting = formula_setting(spec.model_copy(update={"prediction": prediction}))
        except UserError:
            return None
        on_gpu = spec.prediction.gpu is not None or any(rank.device_type == "cuda" for rank in self.trial.ranks)
        as_built = num_params(self.trial)
        return replace(setting, on_gpu=on_gpu) if as_built in {None, setting.num_params} else None

    @property
    def _trains_all(self) -> bool:
        """Whether every parameter is trained: frozen ones have neither gradients nor states."""
        built = [rank.parameters for rank in self.trial.ranks if rank.parameters is not None]
        return all(one.trainable == one.total for one in built)

    @cached_property
    def outline(self) -> Setting | None:
        """The setting as if all trained parameters were one tensor: all that is known of a model without a closed form.

        It gives what depends on the number of parameters alone, but for padding; None without DeepSpeed.
        """
        case = case_of(self.trial)
        if case is None or not case.trained or not self.trial.spec.knows("precision"):
            return None
        trained = replace(case, num_params=case.trained)
        return Setting(trained, (case.trained,), self.trial.spec.optimizer, self.rank)

    def explain(self, category: Category, nbytes: int, instant: Instant, place: Place = Place.DEVICE) -> Explained:
        """`category`, of which `nbytes` lie in `place` at `instant`."""
        accounts = self._accounts(category, instant, place)
        terms = nearest_account(nbytes, accounts, part=category in _SURELY_THERE)
        said = None if terms else _WORDS.get(category) or self._cause(category, nbytes)
        if not terms and not said and (category, instant.phase) == (Category.GRADIENTS, Phase.BACKWARD):
            said = "an instant in the midst of backward, while gradients come and go"
        return Explained(category, nbytes, terms, said)

    def _cause(self, category: Category, nbytes: int) -> str | None:
        return cause(self.trial, category, nbytes) if knows_work(self.trial.spec) and self._trains_all else None

    def _accounts(self, category: Category, instant: Instant, place: Place) -> Iterator[Account]:
        spec, setting = self.trial.spec, self.setting
        if setting is None:
            yield from self._outlined(category, instant, place)
        elif category in _STATES and spec.strategy == fully_sharded.STRATEGY:
            yield from fully_sharded.states(setting, instant.phase, category)
        elif category in _STATES:
            yield from states_accounts(setting, category, instant.phase, place)
        elif category not in _OF_A_PASS or has_dimensions(spec):
            yield from work_accounts(Asked(spec, setting, instant.phase, place), category)

    def _outlined(self, category: Category, instant: Instant, place: Place) -> Iterator[Account]:
        if self.outline is None:
            return
        case = case_of(self.trial)
        if case is not None and case.trained < case.num_params:
            yield from partly_trained.accounts(case, self.outline, category, place, self._codes)
        elif category in {Category.PARAMETERS, *MOMENTS}:
            yield from states_accounts(self.outline, category, instant.phase, place)
        if category is Category.REDUCE_BUFFERS:
            yield account(*bucket_terms(self.outline))
        elif category in _OF_A_BATCH and knows_work(self.trial.spec) and has_dimensions(self.trial.spec):
            yield from work_accounts(Asked(self.trial.spec, self.outline, instant.phase, place), category)

    @property
    def _codes(self) -> partly_trained.Codes | None:
        """What lies quantised; None too of a model whose matrices no closed form tells."""
        base = base_of(self.trial.spec.adapter)
        try:
            return None if base is None else partly_trained.Codes(base, quantised_elements(self.trial.spec.model, base))
        except UserError:
            return None

    def instant(self, instant: Instant, place: Place = Place.DEVICE) -> list[Explained]:
        """All categories that hold anything at `instant`, the largest first."""
        held = sorted(instant.categories.items(), key=lambda item: -item[1])
        return [self.explain(category, nbytes, instant, place) for category, nbytes in held if nbytes]
