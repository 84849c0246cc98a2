"""Effect of each DeepSpeed key in a trial: obeyed, and by which code, or not, and the reason.

DeepSpeed accepts every key that it knows but reads many of them only under conditions, so an accepted key may have no
effect. The table is `key_facts.json`, read by hand from the source of the DeepSpeed that `known_keys.json` names; a
test checks that each of its keys is in exactly one group.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from zerobench.config.deepspeed.keys import known_keys


class Fate(StrEnum):
    """Effect of a key in a trial."""

    OBEYED = "obeyed"
    """DeepSpeed reads it in every trial."""
    CONDITIONAL = "conditional"
    """DeepSpeed reads it if the trial meets one of the conditions."""
    AXIS = "axis"
    """An axis of the sweep decides it; a user's file must agree."""
    UNREAD = "unread"
    """Nothing in a trial reads it."""
    LEFT_OUT = "left_out"
    """DeepSpeed would act on it, but it is not part of a trial: a user's file is used without it."""
    UNSUPPORTED = "unsupported"
    """With it DeepSpeed would fail, or train something other than the trial."""
    SECTION = "section"
    """It has keys below it and no value of its own."""


Condition = Mapping[str, tuple[Any, ...]]
"""Facts of a trial, or full paths of other keys, each with its allowed values; all must hold."""


@dataclass(frozen=True)
class KeyFact:
    """Effect of one key."""

    fate: Fate
    reader: str = ""
    """Place where DeepSpeed reads it, relative to its own folder."""
    why: str = ""
    """Reason why it is not obeyed, as the end of a sentence."""
    axis: str = ""
    """Axis that decides it."""
    when: tuple[Condition, ...] = ()
    """Conditions, any one of which makes DeepSpeed read it; none: always read."""
    switch: str | None = None
    """Key that must be true for this one to have an effect."""
    choices: tuple[str, ...] = ()
    """Values that DeepSpeed accepts, if it checks them only when it reads the key."""
    least: int | None = None
    """Smallest value with which DeepSpeed does not fail on use."""
    idle: tuple[Any, ...] = ()
    """Values equal to the key's absence, if DeepSpeed's table of keys has no default."""
    fails: bool = False
    """Whether DeepSpeed fails, instead of ignoring the key, if no condition holds."""
    by_presence: bool = False
    """Whether its section, even if empty, enables the feature."""


@cache
def key_facts() -> Mapping[str, KeyFact]:
    """Read the table, by full path, or by a section's path with `.*` for everything below it."""
    raw = json.loads(Path(__file__).with_name("key_facts.json").read_text(encoding="utf-8"))
    return {key: _read(group) for group in raw["groups"] for key in group["keys"]}


def fact_of(path: str) -> KeyFact:
    """Effect of the key at the full dotted `path`, which DeepSpeed must know: its own entry, or the nearest above."""
    facts = key_facts()
    if path in facts:
        return facts[path]
    key = known_keys().keys.get(path)
    if key is not None and key.type == "section":
        return KeyFact(Fate.SECTION)
    parts = path.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        above = ".".join(parts[:depth])
        if f"{above}.*" in facts or above in facts:
            return facts[f"{above}.*"] if f"{above}.*" in facts else facts[above]
    raise KeyError(path)


def _read(group: Mapping[str, Any]) -> KeyFact:
    fields = {
        name: group[name]
        for name in ("reader", "why", "axis", "switch", "fails", "by_presence", "least")
        if name in group
    }
    conditions = tuple(
        {name: tuple(values) for name, values in condition.items()} for condition in group.get("when") or ()
    )
    return KeyFact(
        Fate(group["class"]),
        when=conditions,
        choices=tuple(group.get("choices", ())),
        idle=tuple(group.get("idle", ())),
        **fields,
    )
