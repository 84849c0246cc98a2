"""A record keeps the largest parts of each category at a peak, with where they come from and who holds them."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from zerobench.common.vocabulary import Category
from zerobench.rank.ledger.holders import ModulePath
from zerobench.rank.ledger.peak_parts import MOST_PARTS, largest_parts
from zerobench.rank.ledger.replay import Walk
from zerobench.records.records import Holder, PeakPart

EXPERTS = ModulePath("Experts", "layers.*.experts")
NOWHERE = ModulePath()
Thing = tuple[str, str | None, int]
"""A name, the site of its storage (None: no storage was seen), and its bytes."""


def parts(
    live: Iterable[Thing],
    events: Iterable[tuple[Thing, int]] = (),
    module: ModulePath = NOWHERE,
    holder: Holder = Holder.AUTOGRAD,
    category: Category = Category.GATHERED_PARAMETERS,
) -> list[PeakPart]:
    """The parts of one category, all of which have the same holder; `module` saved them for backward."""

    def storage_of(thing: Thing) -> Any:
        birth = SimpleNamespace(name=thing[1], module="Builder")
        return None if thing[1] is None else SimpleNamespace(is_adopted=False, birth=birth)

    walk = Walk[Thing, Category | None](
        [(thing, thing[2]) for thing in live], list(events), lambda _: category, storage_of
    )
    found = largest_parts(walk, lambda *_: [holder], lambda _: module)
    return found[category]


def test_what_one_module_saved_is_one_part_with_the_site_of_most_of_it() -> None:
    [part] = parts([("a", "gather", 30), ("b", "cast", 12)], module=EXPERTS)
    assert (part.total_bytes, part.count, part.site) == (42, 2, "gather")
    assert (part.module, part.path, part.holders) == ("Experts", "layers.*.experts", [Holder.AUTOGRAD])


def test_what_was_freed_before_the_end_counts_where_it_lay_at_the_peak() -> None:
    dead = ("dead", "forward", 50)
    found = parts([("a", "gather", 30)], [(dead, 50), (dead, -50)])
    assert [(part.total_bytes, part.site) for part in found] == [(50, "forward"), (30, "gather")]


def test_only_the_largest_parts_are_kept_and_the_largest_of_a_category_always() -> None:
    found = parts([(str(size), str(size), size) for size in range(1, 20)])
    assert [part.total_bytes for part in found] == list(range(19, 19 - MOST_PARTS, -1))
    assert [part.total_bytes for part in parts([("large", "x", 10**6), ("small", "y", 10)])] == [10**6]


def test_a_block_that_no_tensor_was_seen_to_own_names_no_place_and_no_holder() -> None:
    [part] = parts([("kernel's", None, 8)])
    assert (part.site, part.module, part.holders) == (None, None, [])


@pytest.mark.parametrize(
    ("category", "holder"),
    [
        (Category.WORKSPACES, Holder.LIBRARY),
        (Category.KERNEL_WORKSPACE, Holder.OPERATION),
        (Category.TEMPORARIES, Holder.OPERATION),
    ],
)
def test_a_block_without_a_tensor_is_held_by_what_its_category_is_evidence_of(
    category: Category, holder: Holder
) -> None:
    [part] = parts([("kernel's", None, 8)], category=category)
    assert part.holders == [holder]


def test_the_module_that_saved_a_storage_is_named_only_where_autograd_holds_it() -> None:
    [part] = parts([("a", "build", 8)], module=EXPERTS, holder=Holder.MODEL)
    assert (part.module, part.path, part.site) == ("Builder", None, "build")


def test_a_node_of_the_backward_pass_is_named_in_words() -> None:
    assert parts([("a", "autograd:MulBackward0", 8)])[0].site == "backward of MulBackward0"
