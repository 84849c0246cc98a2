"""A lower bound of one optimizer step, from counted FLOPs and bytes and the hardware's peak rates.

Nothing that can overlap is added up: within the passes (forward and backward) compute, collectives, the host link and
NVMe all run at once at their peaks, so that the longest of them alone is the bound. The update follows them, because it
waits for the last gradient, and within it again all run at once, but for the collectives: DeepSpeed gathers parameters
after it has updated them (stage_1_and_2.py and stage3.py, `step`). Kernel launches, latency, elementwise kernels and
waiting are left out, and so is every term with a missing rate. A real step is slower, never faster; tokens per
second are an upper bound accordingly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zerobench.config.deepspeed.case import Case
from zerobench.config.hardware.hardware import Gpu
from zerobench.config.hardware.links import Links
from zerobench.estimate.time import terms as step_terms
from zerobench.estimate.time import transfers as step_transfers
from zerobench.estimate.time.terms import Term, Work
from zerobench.records.trials import Trial, case_of

TERMS = (
    step_terms.compute,
    step_terms.communication,
    step_terms.optimizer,
    step_transfers.offload,
    step_transfers.nvme,
)


@dataclass(frozen=True)
class StepBound:
    """The least seconds of one optimizer step on the rank that needs most; None: a figure is missing."""

    step_s: float | None
    """None where compute is not known: without it a bound says nothing of training."""
    compute_s: float | None
    communication_s: float | None
    optimizer_s: float | None
    offload_s: float | None
    nvme_s: float | None
    limited_by: str | None
    """The term that most of `step_s` is made of: compute, communication, optimizer, offload or nvme."""
    tokens_per_s: float | None
    """Over all ranks, at most."""
    terms: tuple[str, ...]
    """How each term comes about, and which are left out for want of a figure."""

    @property
    def is_whole(self) -> bool:
        """Whether it has all of its terms, so that it can be held against others."""
        return None not in (self.compute_s, self.communication_s, self.optimizer_s, self.offload_s, self.nvme_s)


def step_bound(trial: Trial, gpu: Gpu, links: Links) -> StepBound | None:
    """The lower bound of a steady step of `trial` on `gpu` and `links`; None where no rank left a record."""
    case = case_of(trial)
    bounds = [_bound(Work(rank, trial.spec, gpu, links, case)) for rank in trial.ranks]
    return max(bounds, key=lambda bound: bound.step_s or 0.0, default=None)


def _bound(work: Work) -> StepBound:
    terms = {term.name: term for term in (make(work) for make in TERMS)}
    shares = _shares(list(terms.values()), overlaps=_updates_beside_passes(work.case))
    step_s = None if terms["compute"].total_s is None else sum(shares.values())
    tokens = work.spec.global_batch_tokens
    return StepBound(
        step_s=step_s,
        **{f"{name}_s": term.total_s for name, term in terms.items()},
        limited_by=max(shares, key=lambda name: shares[name]) if step_s else None,
        tokens_per_s=tokens / step_s if step_s else None,
        terms=tuple(term.sentence for term in terms.values()),
    )


def _shares(terms: Sequence[Term], *, overlaps: bool) -> dict[str, float]:
    """Seconds of the bound by the term that they are due to."""
    known = [term for term in terms if term.total_s is not None]
    shares = {term.name: 0.0 for term in known}
    if overlaps:
        longest = max(known, key=lambda term: term.total_s or 0.0, default=None)
        return shares if longest is None else shares | {longest.name: longest.total_s or 0.0}
    passes = max(known, key=lambda term: term.passes_s or 0.0, default=None)
    if passes is not None:
        shares[passes.name] += passes.passes_s or 0.0
    local = [term for term in known if term.name != "communication"]
    update = max(local, key=lambda term: term.update_s or 0.0, default=None)
    if update is not None:
        shares[update.name] += update.update_s or 0.0
    for term in known:
        if term.name == "communication":
            shares[term.name] += term.update_s or 0.0
    return shares


def _updates_beside_passes(case: Case | None) -> bool:
    """Whether the update may run while the next passes do (ZenFlow's overlap_step, SuperOffload): then all overlaps."""
    zenflow = case is not None and case.config.get("zero_optimization", {}).get("zenflow")
    return bool(zenflow) or (case is not None and bool(case.zero("offload_optimizer.super_offload")))
