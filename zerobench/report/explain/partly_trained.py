"""Accounts of a model of which some weights are frozen: they are parameters and nothing else, divided at stage 3 alone.

What is trained is looked at as one tensor, so that sums miss no more than the padding of single tensors at stage 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from zerobench.ds_config.case import Case
from zerobench.formulas.deepspeed import Setting
from zerobench.records import Category, Phase, Place
from zerobench.report.explain.states import MOMENTS, states_accounts
from zerobench.report.explain.terms import Account, Term, account, of_partition
from zerobench.report.explain.work import live_accounts
from zerobench.spec.trial import Offload


@dataclass(frozen=True)
class Codes:
    """Frozen weights that lie quantised."""

    base: str
    elements: int

    def nbytes(self) -> int:
        """Of the codes; their scales are buffers of the model."""
        return self.elements // 2 if self.base == "nf4" else self.elements


def accounts(
    case: Case, trained: Setting, category: Category, place: Place, codes: Codes | None = None
) -> Iterator[Account]:
    """What may lie in a category of model states, or of gathered parameters; `trained` is the trained part alone."""
    if category is Category.PARAMETERS and (place is Place.DEVICE) == (case.offload_param is Offload.NONE):
        for one in states_accounts(trained, category, Phase.STEP, place):
            yield account(*_frozen(case, codes), *map(_of_trained, one))
    elif category in MOMENTS:
        yield from (tuple(map(_of_trained, one)) for one in states_accounts(trained, category, Phase.STEP, place))
    elif category is Category.GRADIENTS and case.stage >= 2 and not trained.offloads:
        yield tuple(map(_of_trained, of_partition(trained, case.gradient_element)))
    elif category is Category.GATHERED_PARAMETERS and case.stage == 3:
        stored = case.num_params if codes is None else case.num_params - codes.elements + codes.nbytes() // case.element
        yield from live_accounts(replace(trained, case=replace(case, num_params=stored), tensors=(stored,)))


def _frozen(case: Case, codes: Codes | None) -> Iterator[Term]:
    frozen = case.num_params - case.trained - (0 if codes is None else codes.elements)
    ranks = case.world_size if case.stage == 3 else 1
    of = f" / {ranks} ranks" if ranks > 1 else ""
    yield Term(case.element * frozen // ranks, f"{case.element} bytes x {frozen:,} frozen parameters{of}")
    if codes is not None:
        yield Term(codes.nbytes() // ranks, f"{codes.elements:,} frozen parameters in {codes.base}{of}")


def _of_trained(term: Term) -> Term:
    return Term(term.nbytes, term.text.replace(" parameters", " trained parameters"))
