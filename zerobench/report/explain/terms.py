"""Terms of the formulas that are held against the ledger: their bytes must add up to what a category holds.

An account is a list of terms that could be all that lies in a category at some instant. Of those that the formulas name
the one nearest to the ledger's bytes is taken, if it comes within CLOSE of them; where none is exact, instants between
those that they name are looked at too: some of the terms, or other fills of a bucket. What merely could be a part is
no explanation: only where something surely lies there (the bucket, a partition) may an account be a smaller part; the
rest is then `not explained`, however large.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from zerobench.common.vocabulary import Category
from zerobench.estimate.memory.terms.terms import Bytes, Term, Terms
from zerobench.records.records import PeakPart

CLOSE = 0.02
"""An account may miss what was seen by this part: a formula that is all but right is still the cause."""
_FEW = 6
"""Accounts from which on each has to come nearer than CLOSE, so that all together fit no more by chance."""
TELLING = 0.001
"""What is not explained and is less than this part of a category is rounding and goes unsaid in sentences."""

Account = tuple[Term, ...]


@dataclass(frozen=True)
class Explanation:
    """One category at one instant: what was seen, and the terms that account for it."""

    category: Category
    seen_bytes: int
    terms: Account = ()
    depends_on: str | None = None
    """Settings that it depends on, where no closed form gives its bytes."""
    parts: Sequence[PeakPart] = ()
    """Its largest parts by the record, where the terms do not give all of it."""

    @property
    def not_explained_bytes(self) -> int:
        """What was seen beyond the terms; below 0 where they give a little more."""
        return self.seen_bytes - _sum(self.terms)

    @property
    def is_whole(self) -> bool:
        """Whether the terms give what was seen, but for rounding."""
        return bool(self.terms) and abs(self.not_explained_bytes) <= TELLING * self.seen_bytes


def explaining(seen_bytes: int, named: Iterable[Account], *, part: bool, between: bool) -> Account:
    """The account that comes nearest to `seen_bytes`, within CLOSE; empty where there is none.

    With `part` it may be smaller by any amount, with `between` it may lie between those named. Of equals the first, so
    that the likeliest stands first.
    """
    known = list(dict.fromkeys(account for account in named if account))
    terms = _nearest(seen_bytes, known, part=part)
    if (terms and _sum(terms) == seen_bytes) or not between:
        return terms
    return _nearest(seen_bytes, list(dict.fromkeys([*known, *_between(known)])), part=part) or terms


def _nearest(seen_bytes: int, known: Sequence[Account], *, part: bool) -> Account:
    close = CLOSE * min(1.0, _FEW / max(len(known), 1))  # of many accounts one is always near
    least, most = (0 if part else seen_bytes * (1 - close)), seen_bytes * (1 + close)
    possible = [account for account in known if least <= _sum(account) <= most]
    return min(possible, key=lambda account: abs(seen_bytes - _sum(account)), default=())


def _between(known: Sequence[Account]) -> Iterator[Account]:
    """Others in the places of terms, and some of the terms of an account."""
    whole = list(known)
    for account in known:
        for others in zip(*(term.others() for term in account if term.others is not None), strict=False):
            instead = iter(others)
            whole.append(tuple(term if term.others is None else next(instead) for term in account))
    yield from whole
    for account in whole:
        for count in range(len(account) - 1, 0, -1):
            yield from combinations(account, count)


def _sum(account: Account) -> int:
    return sum(term.nbytes for term in account)


def account_of(instant: Bytes, category: Category) -> Account:
    """The terms of one category, with what is to be said of them; empty where a part of it has no words."""
    terms = [term for term in instant.terms if term.category is category] if isinstance(instant, Terms) else []
    return tuple(terms) if all(term.words for term in terms) else ()
