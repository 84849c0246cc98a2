"""Changes of a command that need less memory, each made in a copy: the DeepSpeed configuration file that it names, and
the options of the Hugging Face Trainer.

Nothing is guessed: each is played. What cannot be changed from outside, as a batch size that stands in the script, is
not offered.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

_CPU = {"device": "cpu", "pin_memory": True}
_BATCHES = ("--per_device_train_batch_size", "--per-device-train-batch-size")
_PASSES = ("--gradient_accumulation_steps", "--gradient-accumulation-steps")
_CHECKPOINTING = ("--gradient_checkpointing", "--gradient-checkpointing")
_OF_TRAINER = (*_BATCHES, "--output_dir", "--output-dir", "--max_steps", "--max-steps")
_OF_DEEPSPEED = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")
_CONFIG = "ds_config.json"


@dataclass(frozen=True)
class Draft:
    """A command on the way to another one."""

    words: tuple[str, ...]
    ds: dict[str, Any] | None = None
    """The DeepSpeed configuration that it names."""
    ds_word: int | None = None
    """Which word names it."""

    @classmethod
    def of(cls, command: Sequence[str]) -> Draft:
        """The command as given."""
        for index, word in enumerate(command[1:], start=1):
            found = _ds_config(word.rpartition("=")[2])
            if found is not None:
                return cls(tuple(command), found, index)
        return cls(tuple(command))

    @property
    def can_change(self) -> bool:
        """Whether anything can be changed from outside."""
        return self.ds is not None or any(_value(self.words, (name,)) for name in _OF_TRAINER)

    def command(self, folder: Path) -> list[str]:
        """The words, with the configuration written into `folder`."""
        words = list(self.words)
        if self.ds is not None and self.ds_word is not None:
            file = folder / _CONFIG
            file.write_text(json.dumps(self.ds, indent=1), encoding="utf-8")
            name, equals, _ = words[self.ds_word].rpartition("=")
            words[self.ds_word] = f"{name}{equals}{file}"
        return words


Change = Callable[[Draft], tuple[str, Draft] | None]
"""What it says, and the draft that it makes; None where there is nothing to change."""


@dataclass(frozen=True)
class Candidate:
    """One or several changes together."""

    says: tuple[str, ...]
    draft: Draft = field(compare=False)


def candidates(command: Sequence[str]) -> Iterator[Candidate]:
    """What to try, in order: each change alone, the cheapest first, then more and more of them together."""
    start = Draft.of(command)
    tried: list[Draft] = [start]
    for change in (_one_sequence, _checkpointing, _next_stage, _last_stage, _offload_optimizer):
        made = change(start)
        if made is not None and made[1] not in tried:
            tried.append(made[1])
            yield Candidate((made[0],), made[1])
    says: tuple[str, ...] = ()
    draft = start
    for change in (_one_sequence, _checkpointing, _last_stage, _offload_optimizer, _offload_parameters):
        made = change(draft)
        if made is None:
            continue
        says, draft = (*says, made[0]), made[1]
        if draft not in tried:
            tried.append(draft)
            yield Candidate(says, draft)


def _one_sequence(draft: Draft) -> tuple[str, Draft] | None:
    """Micro batch 1, more passes instead: the global batch stays."""
    words, ds = list(draft.words), copy.deepcopy(draft.ds)
    before = 1
    at = _value(words, _BATCHES)
    if at is not None:
        before = max(before, at[1])
        words[at[0]] = _with(words[at[0]], 1)
        passes = _value(words, _PASSES)
        if passes is None:
            words += [_PASSES[0], str(at[1])]
        else:
            words[passes[0]] = _with(words[passes[0]], passes[1] * at[1])
    size = None if ds is None else _number(ds, "train_micro_batch_size_per_gpu")
    if ds is not None and size is not None:
        before = max(before, size)
        ds["train_micro_batch_size_per_gpu"] = 1
        passed = _number(ds, "gradient_accumulation_steps") if "gradient_accumulation_steps" in ds else 1
        if passed is not None:
            ds["gradient_accumulation_steps"] = passed * size
    if before == 1:
        return None
    return f"micro batch 1 instead of {before}", replace(draft, words=tuple(words), ds=ds)


def _checkpointing(draft: Draft) -> tuple[str, Draft] | None:
    """Activation checkpointing by the Trainer's option, where the command has other options of the Trainer's."""
    words = draft.words
    is_trainers = any(word.partition("=")[0] in _OF_TRAINER for word in words)
    if not is_trainers or any(word.partition("=")[0] in _CHECKPOINTING for word in words):
        return None
    return "activation checkpointing", replace(draft, words=(*words, _CHECKPOINTING[0], "True"))


def _next_stage(draft: Draft) -> tuple[str, Draft] | None:
    """The next ZeRO stage."""
    stage = _stage(draft)
    return None if stage is None or stage >= 3 else _with_zero(draft, f"ZeRO stage {stage + 1}", {"stage": stage + 1})


def _last_stage(draft: Draft) -> tuple[str, Draft] | None:
    """ZeRO stage 3."""
    stage = _stage(draft)
    return None if stage is None or stage >= 3 else _with_zero(draft, "ZeRO stage 3", {"stage": 3})


def _offload_optimizer(draft: Draft) -> tuple[str, Draft] | None:
    """Optimizer states in host memory; a torch optimizer of the script's own is allowed to stay one."""
    if not _stage(draft) or _is_offloaded(draft, "offload_optimizer"):
        return None
    made = _with_zero(draft, "optimizer states offloaded to the host", {"offload_optimizer": _CPU})
    if made[1].ds is not None and "optimizer" not in made[1].ds:
        made[1].ds.setdefault("zero_force_ds_cpu_optimizer", False)
    return made


def _offload_parameters(draft: Draft) -> tuple[str, Draft] | None:
    """Parameters in host memory, which stage 3 alone can do."""
    if _stage(draft) != 3 or _is_offloaded(draft, "offload_param"):
        return None
    return _with_zero(draft, "parameters offloaded to the host", {"offload_param": _CPU})


def _stage(draft: Draft) -> int | None:
    zero = _zero(draft)
    stage = None if zero is None else zero.get("stage", 0)
    return stage if isinstance(stage, int) else None


def _zero(draft: Draft) -> Mapping[str, Any] | None:
    if draft.ds is None:
        return None
    zero = draft.ds.get("zero_optimization", {})
    return zero if isinstance(zero, Mapping) else None


def _is_offloaded(draft: Draft, section: str) -> bool:
    found = (_zero(draft) or {}).get(section)
    return isinstance(found, Mapping) and found.get("device", "none") not in (None, "none")


def _with_zero(draft: Draft, says: str, settings: Mapping[str, Any]) -> tuple[str, Draft]:
    ds = copy.deepcopy(draft.ds or {})
    ds["zero_optimization"] = {**(_zero(draft) or {}), **settings}
    return says, replace(draft, ds=ds)


def _ds_config(word: str) -> dict[str, Any] | None:
    """What lies in the file `word`, where that is a DeepSpeed configuration."""
    if not word.endswith(".json"):
        return None
    try:
        read = json.loads(Path(word).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) and any(key in read for key in _OF_DEEPSPEED) else None


def _value(words: Sequence[str], names: Sequence[str]) -> tuple[int, int] | None:
    """The word that holds the value of an option, and the value; None where it is not given, or is no whole number."""
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            at = index if equals else index + 1
            value = value if equals else (words[at] if at < len(words) else "")
            return (at, int(value)) if value.isascii() and value.isdecimal() else None
    return None


def _with(word: str, value: int) -> str:
    name, equals, _ = word.rpartition("=")
    return f"{name}{equals}{value}"


def _number(settings: Mapping[str, Any], key: str) -> int | None:
    """A whole number; None for what is left to others, as "auto"."""
    value = settings.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
