"""Do strategies that must compute the same thing compute it? Where they do not, a trial's memory is not believed.

ZeRO changes where states lie and never the arithmetic, so with equal weights, data, global batch and
hyperparameters (`TrialSpec.parity_hash`) the losses of all strategies agree but for the order of additions. So do the
norms of their gradients (gradient_parity.py), which see what losses cannot.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zerobench.common.grouped import grouped
from zerobench.config.derived.strategy import STRATEGIES, has_exact_gradients, is_exact, paper_stage
from zerobench.config.trial.trial import Compile, CrossEntropy, Precision, TrialSpec
from zerobench.records.trials import Trial, all_ranks_ran, completed, recorded_grad_norms, recorded_losses, uses_dropout
from zerobench.report.figures.gradient_parity import (
    DRIFTED_TOLERANCE,
    NORM_TOLERANCES,
    largest_distance,
    num_stable_steps,
)

TOLERANCES: dict[Precision, float] = {Precision.FP32: 5e-6, Precision.BF16: 2e-2, Precision.FP16: 2e-2}
"""Largest difference of losses, absolute, at which two strategies still agree.

fp32: partitioning reorders sums of about 1e1 in size; float32 resolves 1e-6 there, and a few steps leave a
few units in the last place.

bf16: a value has 8 bits of mantissa, one unit is 2**-8 = 0.4% of it. Gradients are averaged over ranks in bf16
and in another order in each strategy, and the weights are rounded to bf16 after each update, where a difference
in the last bit of a gradient flips a rounding. The logits of a loss near 10 are thus uncertain by some 1e-2
each, of which the mean over thousands of tokens leaves less. A 20M-parameter Llama on two CPU ranks lay 5e-4 from
the single process over its first nine steps; differences grow with the steps and the model, hence the margin. A
real fault (a wrong gradient scale, garbage weights) is larger than 2e-2 by ten times or more.

fp16: 11 bits of mantissa, so finer than bf16; but a loss scale that skips a step in one strategy and not in
another shifts the curve by one update, hence the same bound.
"""


@dataclass(frozen=True)
class Parity:
    """Losses of one trial, and the norms of its gradients, compared with its reference's."""

    reference: str
    """trial_id of the reference."""
    difference: float
    """Largest absolute difference over the steps that are judged; infinite where a loss is not finite."""
    tolerance: float
    num_steps: int
    """Number of judged steps: those that both have, until the reference's training turned unstable."""
    is_judged: bool = True
    """True if the trial must compute what its reference computes; one that changes the arithmetic by design (compressed
    gradients) has a distance and no verdict."""
    are_norms_judged: bool = True
    """True if its gradients must, though an optimizer may make something else of them."""
    norm_difference: float | None = None
    """Largest distance of the norms (gradient_parity.distance); None where one of the two knows none."""
    norm_tolerance: float = 0.0
    is_cut: bool = False
    """True if it turned unstable (gradient_parity.num_stable_steps)."""

    @property
    def losses_agree(self) -> bool:
        """True if the losses do, or need not."""
        return not self.is_judged or self.difference <= self.tolerance

    @property
    def norms_agree(self) -> bool:
        """True if the norms of the gradients do, or need not, or are not known."""
        return not self.are_norms_judged or self.norm_difference is None or self.norm_difference <= self.norm_tolerance

    @property
    def agrees(self) -> bool:
        """True if the trial computed what its reference computed, or need not."""
        return self.losses_agree and self.norms_agree

    @property
    def disagreements(self) -> list[tuple[str, float, float]]:
        """Quantities that disagree (`losses`, `gradient norms`), each with its distance and its tolerance."""
        checks = [
            (self.losses_agree, ("losses", self.difference, self.tolerance)),
            (self.norms_agree, ("gradient norms", self.norm_difference or 0.0, self.norm_tolerance)),
        ]
        return [what for agrees, what in checks if not agrees]

    @property
    def disagreeing(self) -> str:
        """Quantities that disagree: `losses`, `gradient norms`, or both."""
        return " and ".join(name for name, _, _ in self.disagreements)


def losses(trial: Trial) -> Sequence[float]:
    """Global mean loss of each step; empty where the loss is not one of the whole batch.

    Every rank records the same global loss, so the first rank that has any speaks for all. A rank alone of
    many (`solo`) and `simulated` ranks see no other rank's loss.
    """
    return recorded_losses(trial) if all_ranks_ran(trial) else ()


def grad_norms(trial: Trial) -> Sequence[float | None]:
    """Global norm of each step's gradients; empty where it is not one of all ranks, or nobody recorded it."""
    return recorded_grad_norms(trial) if all_ranks_ran(trial) else ()


def largest_difference(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Largest |ours - theirs| over the steps both have; infinite with a loss that is not finite; else None."""
    pairs = list(zip(ours, theirs, strict=False))
    if not pairs:
        return None
    differences = [abs(a - b) for a, b in pairs]
    return max(d if math.isfinite(d) else math.inf for d in differences)


def _reference_order(trial: Trial) -> tuple[bool, bool, bool, int, int, bool, int]:
    """Sort key: `single` first, then exact ones, the model as it is, the fewest states divided, no offload."""
    spec = trial.spec
    offloaded = spec.offload_optimizer != "none" or spec.offload_param != "none"
    divided = paper_stage(spec) or 0
    is_changed = spec.cross_entropy is not CrossEntropy.FULL or spec.compile is not Compile.NONE
    return spec.strategy != "single", not is_exact(spec), is_changed, divided, spec.world_size, offloaded, spec.repeat


class ParityJudge:
    """Finds each trial's reference among `trials` and compares; reads ranks only of those it compares.

    Models with dropout are not compared: each strategy draws its own random numbers.
    """

    def __init__(self, trials: Iterable[Trial]) -> None:
        alike = (trial for trial in trials if completed(trial) and all_ranks_ran(trial) and not uses_dropout(trial))
        self._groups = grouped(alike, lambda trial: trial.spec.parity_hash)
        for group in self._groups.values():
            group.sort(key=_reference_order)

    def reference(self, trial: Trial) -> Trial | None:
        """The trial that `trial` is held against: `single`, else the lowest stage; None where it is alone."""
        group = self._groups.get(trial.spec.parity_hash, [])
        return next((other for other in group if losses(other)), None) if len(group) > 1 else None

    def judge(self, trial: Trial) -> Parity | None:
        """Parity of `trial`; None for the reference itself and where there is nothing to compare with."""
        reference = self.reference(trial) if completed(trial) else None
        if reference is None or reference.spec.trial_id == trial.spec.trial_id:
            return None
        norms = recorded_grad_norms(reference)
        stable = num_stable_steps(norms)
        ours, theirs = losses(trial), losses(reference)[:stable]
        difference = largest_difference(ours, theirs)
        if difference is None:
            return None
        return Parity(
            reference.spec.trial_id,
            difference,
            tolerance(trial.spec),
            num_steps=min(len(ours), len(theirs)),
            is_cut=stable is not None,
            is_judged=is_exact(trial.spec),
            are_norms_judged=has_exact_gradients(trial.spec),
            norm_difference=largest_distance(recorded_grad_norms(trial), norms[:stable], trial.spec.precision),
            norm_tolerance=NORM_TOLERANCES[trial.spec.precision] if is_exact(trial.spec) else DRIFTED_TOLERANCE,
        )


def tolerance(spec: TrialSpec) -> float:
    """Largest difference at which the trial still agrees: the strategy's own in fp32, the precision's in 16 bits."""
    info = STRATEGIES.get(spec.strategy)
    if info is None or spec.precision is not Precision.FP32:
        return TOLERANCES[spec.precision]
    return info.loss_tolerance or TOLERANCES[spec.precision]
