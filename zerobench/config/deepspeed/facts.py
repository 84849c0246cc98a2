"""What becomes of each of DeepSpeed's keys in a trial: obeyed, and by what, or not, and why.

DeepSpeed accepts every key that it knows and reads many of them under conditions only, so that a key which was
accepted need not have been obeyed. The table is `key_facts.json`, read by hand in the source of the DeepSpeed that
`known_keys.json` names; a test holds that each of its keys is in exactly one group.
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
    """What becomes of a key."""

    OBEYED = "obeyed"
    """DeepSpeed reads it whatever the trial is."""
    CONDITIONAL = "conditional"
    """DeepSpeed reads it where the trial meets one of the conditions."""
    AXIS = "axis"
    """An axis of the sweep decides it; a user's file must say the same."""
    UNREAD = "unread"
    """Nothing in a trial reads it."""
    LEFT_OUT = "left_out"
    """DeepSpeed would act on it, and it is no part of a trial: a user's file is used without it."""
    UNSUPPORTED = "unsupported"
    """With it DeepSpeed would fail, or train something other than the trial."""
    SECTION = "section"
    """It has keys below it and says nothing by itself."""


Condition = Mapping[str, tuple[Any, ...]]
"""Facts of a trial, or full paths of other keys, each with the values that it may have; all must hold."""


@dataclass(frozen=True)
class KeyFact:
    """What becomes of one key."""

    fate: Fate
    reader: str = ""
    """Where DeepSpeed reads it, from its own folder."""
    why: str = ""
    """Why it is not obeyed, as the end of a sentence."""
    axis: str = ""
    """What decides it."""
    when: tuple[Condition, ...] = ()
    """Under which conditions, any of them, DeepSpeed reads it; none: always."""
    switch: str | None = None
    """The key without which, where it is not true, DeepSpeed does nothing with this one."""
    choices: tuple[str, ...] = ()
    """The values that DeepSpeed takes, where it says so only when it reads them."""
    least: int | None = None
    """The smallest value with which DeepSpeed does not fail when it comes to use it."""
    idle: tuple[Any, ...] = ()
    """Values that say what its absence does, where DeepSpeed's table of keys has no default."""
    fails: bool = False
    """Whether DeepSpeed fails where no condition holds, and does not merely pass it over."""
    by_presence: bool = False
    """Whether its section, be it empty, switches on what it is about."""


@cache
def key_facts() -> Mapping[str, KeyFact]:
    """By the key's full path, or that of a section with `.*` for all that is below it."""
    raw = json.loads(Path(__file__).with_name("key_facts.json").read_text(encoding="utf-8"))
    return {key: _read(group) for group in raw["groups"] for key in group["keys"]}


def fact_of(path: str) -> KeyFact:
    """What becomes of the key at the full dotted `path`, which DeepSpeed knows: its own entry, or the nearest above."""
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
