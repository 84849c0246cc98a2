"""The largest parts of each category at the peak of a phase, with allocation site and holders."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from zerobench.common.vocabulary import Category
from zerobench.rank.ledger.holders import ModulePath
from zerobench.rank.ledger.replay import Walk, things_at_peak
from zerobench.rank.ledger.storages import Storage
from zerobench.records.records import Holder, PeakPart

MOST_PARTS = 4
_LEAST_SHARE = 0.001
"""Smaller shares of the peak are left out, except the largest part of a category, to keep records small."""

_UNSEEN: dict[Category, tuple[Holder, ...]] = {
    Category.WORKSPACES: (Holder.LIBRARY,),
    Category.KERNEL_WORKSPACE: (Holder.OPERATION,),
    Category.TEMPORARIES: (Holder.OPERATION,),
}
"""Holders of blocks that no tensor was seen to own; the evidence is their size, or their life within one phase."""


class _Kind(NamedTuple):
    """Properties that the storages of one part share."""

    category: Category
    holders: tuple[Holder, ...] = ()
    module: ModulePath = ModulePath()
    site: str | None = None
    """Only if no module is known by name: memory that one module saved for backward is one part, whatever its sites."""


def largest_parts(
    walk: Walk[Any, Category | None],
    holders_of: Callable[[Storage, Category], list[Holder]],
    module_of: Callable[[Storage], ModulePath],
) -> dict[Category, list[PeakPart]]:
    """Return up to MOST_PARTS parts of each category at the peak of the phase of `walk`.

    `module_of` gives the module that saved a storage for backward.
    """
    sites: dict[_Kind, Counter[str | None]] = defaultdict(Counter)
    counts: Counter[_Kind] = Counter()
    for thing, nbytes in things_at_peak(walk.live, walk.events).items():
        category, storage = walk.category_of(thing) or Category.UNATTRIBUTED, walk.storage_of(thing)
        site = None
        if storage is None:
            kind = _Kind(category, _UNSEEN.get(category, ()))
        else:
            site = None if storage.is_adopted else storage.birth.name.replace("autograd:", "backward of ")
            holders = tuple(holders_of(storage, category))
            is_saved = Holder.AUTOGRAD in holders
            module = module_of(storage) if is_saved else ModulePath(storage.birth.module)
            kind = _Kind(category, holders, module, None if module.path else site)
        sites[kind][site] += nbytes
        counts[kind] += 1
    ranked = sorted(((sizes.total(), kind) for kind, sizes in sites.items()), key=lambda part: -part[0])
    least = _LEAST_SHARE * sum(nbytes for nbytes, _ in ranked)
    parts: dict[Category, list[PeakPart]] = defaultdict(list)
    for nbytes, kind in ranked:
        category_parts = parts[kind.category]
        if not category_parts or (nbytes >= least and len(category_parts) < MOST_PARTS):
            [(site, _)] = sites[kind].most_common(1)
            name, path = kind.module
            figures = {"total_bytes": nbytes, "count": counts[kind], "holders": list(kind.holders)}
            category_parts.append(PeakPart.model_validate(figures | {"site": site, "module": name, "path": path}))
    return dict(parts)
