"""A command on the way to another one: its words, the DeepSpeed configuration that it names, its environment."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zerobench.launch.emulate.options import NAMES, Kind, Option, Value, options_of_words
from zerobench.records.folder import write_plain

_OF_DEEPSPEED = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")
_CONFIG = "ds_config.json"


@dataclass(frozen=True)
class Draft:
    """A command, and what it would be with changes."""

    words: tuple[str, ...]
    ds: dict[str, Any] | None = None
    """The DeepSpeed configuration that it names."""
    ds_word: int | None = None
    """Which word names it."""
    options: tuple[Option, ...] = ()
    """What its script, or its launcher, knows and zerobench can vary."""
    num_arguments: int | None = None
    """How many of its last words are the script's; None: not known."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What its environment has more."""

    @classmethod
    def of(cls, command: Sequence[str], options: Sequence[Option] = (), num_arguments: int | None = None) -> Draft:
        """The command as given; `options` are those that its script said to know, as far as it said any."""
        scripts_own = tuple(options)
        words = command[1 if num_arguments is None else max(1, len(command) - num_arguments) :]
        known = (
            scripts_own
            if any(not option.of_launcher for option in scripts_own)
            else (*options_of_words(words), *scripts_own)
        )
        for index, word in enumerate(command[1:], start=1):
            config = _ds_config(word.rpartition("=")[2])
            if config is not None:
                return cls(tuple(command), config, index, known, num_arguments)
        return cls(tuple(command), options=known, num_arguments=num_arguments)

    def command(self, folder: Path) -> list[str]:
        """The words, with the configuration written into `folder`."""
        words = list(self.words)
        if self.ds is not None and self.ds_word is not None:
            file = folder / _CONFIG
            write_plain(file, json.dumps(self.ds, indent=1))
            name, equals, _ = words[self.ds_word].rpartition("=")
            words[self.ds_word] = f"{name}{equals}{file}"
        return words

    def option(self, kind: Kind) -> Option | None:
        """The one of this kind; of several the one whose name stands first in NAMES."""
        order = list(NAMES)
        options = sorted(
            (option for option in self.options if option.kind is kind), key=lambda option: order.index(option.dest)
        )
        return options[0] if options else None

    def with_option(self, option: Option, value: Value) -> Draft:
        """The command with another value for it: in its place where it is given, else at the end."""
        written = "True" if value is True else str(value)
        made = option.model_copy(update={"value": value})
        options = tuple(made if known is option else known for known in self.options)
        words = list(self.words)
        start = 1 if self.num_arguments is None else max(1, len(words) - self.num_arguments)
        if option.of_launcher:  # its last words, before the script
            words[start - 1 : start - 1] = [option.names[0], written]
            moved = None if self.ds_word is None else self.ds_word + 2 * (self.ds_word >= start - 1)
            return replace(self, words=tuple(words), options=options, ds_word=moved)
        given = [at for at in range(start, len(words)) if words[at].partition("=")[0] in option.names]
        if not given:
            words += [option.names[0]] if option.is_flag else [option.names[0], written]
            more = None if self.num_arguments is None else self.num_arguments + len(words) - len(self.words)
            return replace(self, words=tuple(words), options=options, num_arguments=more)
        name, equals, _ = words[given[-1]].partition("=")
        if equals:
            words[given[-1]] = f"{name}={written}"
        elif not option.is_flag:
            words[given[-1] + 1 : given[-1] + 2] = [written]
        return replace(self, words=tuple(words), options=options)

    def with_ds(self, settings: Mapping[str, Any]) -> Draft:
        """The command with other values in its DeepSpeed configuration."""
        return replace(self, ds={**copy.deepcopy(self.ds or {}), **settings})

    @property
    def zero(self) -> Mapping[str, Any] | None:
        """The section on ZeRO; None without a configuration."""
        if self.ds is None:
            return None
        zero = self.ds.get("zero_optimization", {})
        return zero if isinstance(zero, Mapping) else None

    @property
    def stage(self) -> int | None:
        """ZeRO's, where a number says it."""
        stage = None if self.zero is None else self.zero.get("stage", 0)
        return stage if isinstance(stage, int) else None

    def is_offloaded(self, section: str) -> bool:
        """Whether `offload_optimizer` or `offload_param` names a device."""
        return bool(self.offloaded(section))

    def offloaded(self, section: str) -> Mapping[str, Any]:
        """The section where it names a device; else nothing."""
        settings = (self.zero or {}).get(section)
        return (
            settings if isinstance(settings, Mapping) and settings.get("device", "none") not in (None, "none") else {}
        )

    def number(self, key: str) -> int | None:
        """A whole number of the configuration; None for what is not there, or left to others, as "auto"."""
        value = (self.ds or {}).get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def _ds_config(word: str) -> dict[str, Any] | None:
    """What lies in the file `word`, where that is a DeepSpeed configuration."""
    if not word.endswith(".json"):
        return None
    try:
        read = json.loads(Path(word).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) and any(key in read for key in _OF_DEEPSPEED) else None
