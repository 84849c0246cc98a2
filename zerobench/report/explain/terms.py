"""Arithmetic that is held against the ledger: terms whose bytes must add up to what a category holds.

An account is a list of terms that could be all that lies in a category at some instant, each with the closed form that
gives its bytes. Of the accounts that the configuration allows, the one nearest to the ledger's bytes is taken, if it
comes within CLOSE of them: what merely could be a part of them is no explanation. Only where something surely lies
there (the bucket, a partition) may it be a smaller part; the rest is then `not explained`, however large.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zerobench.formulas.deepspeed import Setting
from zerobench.records import Category

CLOSE = 0.02
"""An account may miss what was seen by this part: a formula that is all but right is still the cause."""
_FEW = 6
"""Accounts from which on each has to come nearer than CLOSE, so that all together fit no more by chance."""
TELLING = 0.001
"""What is not explained and is less than this part of a category is rounding and goes unsaid in sentences."""


@dataclass(frozen=True)
class Term:
    """One summand: its bytes, and how they come about."""

    nbytes: int
    text: str


Account = tuple[Term, ...]


@dataclass(frozen=True)
class Explained:
    """One category at one instant: what was seen, and the terms that account for it."""

    category: Category
    seen_bytes: int
    terms: Account = ()
    depends_on: str | None = None
    """Settings that it depends on, where no closed form gives its bytes."""

    @property
    def explained_bytes(self) -> int:
        """The sum of the terms."""
        return sum(term.nbytes for term in self.terms)

    @property
    def not_explained_bytes(self) -> int:
        """What was seen beyond the terms; below 0 where they give a little more."""
        return self.seen_bytes - self.explained_bytes

    @property
    def is_whole(self) -> bool:
        """Whether the terms give what was seen, but for rounding."""
        return bool(self.terms) and abs(self.not_explained_bytes) <= TELLING * self.seen_bytes


def account(*terms: Term | None) -> Account:
    """The terms that hold anything."""
    return tuple(term for term in terms if term is not None and term.nbytes > 0)


def nearest_account(seen_bytes: int, accounts: Iterable[Sequence[Term]], *, part: bool = False) -> Account:
    """The account that comes nearest to `seen_bytes`, within CLOSE; empty where there is none.

    With `part` it may be smaller by any amount. Of equals the first, so that the likeliest stands first.
    """
    known = [tuple(one) for one in accounts if one]
    close = CLOSE * min(1.0, _FEW / max(len(known), 1))  # of many accounts one is always near
    least, most = (0 if part else seen_bytes * (1 - close)), seen_bytes * (1 + close)
    possible = [one for one in known if least <= sum(term.nbytes for term in one) <= most]
    return min(possible, key=lambda one: abs(seen_bytes - sum(term.nbytes for term in one)), default=())


def of_parameters(setting: Setting, element: int, what: str = "") -> Account:
    """`element` bytes for every parameter."""
    words = f"{what}: " if what else ""
    return account(Term(element * setting.num_params, f"{words}{element} bytes x {setting.num_params:,} parameters"))


def of_partition(setting: Setting, element: int, what: str = "") -> Account:
    """`element` bytes for every parameter of one rank's partition, and its padding.

    Stages 1 and 2 pad the flat buffer to two elements a rank (stage_1_and_2.py, nccl_start_alignment_factor), stage 3
    each tensor to a multiple of the ranks (partition_parameters.py, _aligned_size).
    """
    ranks = setting.case.world_size
    held = setting.sharded if setting.case.stage == 3 else setting.flat_partition
    words = f"{what}: " if what else ""
    whole = element * setting.num_params // ranks
    of = f" / {ranks} ranks" if ranks > 1 else ""
    return account(
        Term(whole, f"{words}{element} bytes x {setting.num_params:,} parameters{of}"),
        Term(element * held - whole, f"{words}padding of the partition"),
    )


def of_elements(element: int, elements: int, what: str) -> Term:
    """`element` bytes for each of so many elements of something."""
    return Term(element * elements, f"{what}: {element} bytes x {elements:,} elements")
