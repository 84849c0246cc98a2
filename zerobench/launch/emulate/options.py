"""Options of a user's own script that say how much memory it takes, under the names that they have everywhere.

A script is asked: what its parser knows, and the value that it read, is in the account of the process that played it
(zerobench.launch.emulate.inside.script_options). Of a script that reads its arguments otherwise only the words are
known.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from zerobench.records.records import Record

Value = bool | int | str | None


class Kind(StrEnum):
    """What an option sets."""

    BATCH = "batch"
    """Sequences of one rank in one forward pass."""
    PASSES = "passes"
    """Forward passes before an update."""
    CHECKPOINTING = "checkpointing"
    BF16 = "bf16"
    FP16 = "fp16"
    MIXED_PRECISION = "mixed_precision"
    """accelerate's: no, fp16, bf16."""


NAMES: dict[str, Kind] = {
    "per_device_train_batch_size": Kind.BATCH,
    "train_micro_batch_size_per_gpu": Kind.BATCH,
    "micro_batch_size": Kind.BATCH,
    "train_batch_size": Kind.BATCH,
    "batch_size": Kind.BATCH,
    "gradient_accumulation_steps": Kind.PASSES,
    "gradient_checkpointing": Kind.CHECKPOINTING,
    "activation_checkpointing": Kind.CHECKPOINTING,
    "bf16": Kind.BF16,
    "fp16": Kind.FP16,
    "mixed_precision": Kind.MIXED_PRECISION,
}
"""transformers' TrainingArguments, accelerate's examples, and what scripts for torchrun call the same; of two names of
one kind the one that stands first."""

_OF_TRAINER = ("per_device_train_batch_size", "output_dir", "max_steps")
"""Words by which a script is known to be the Trainer's, whose other options it then knows too."""


class Option(Record):
    """One option that the script knows."""

    dest: str
    """Its name, as NAMES has it."""
    names: list[str]
    """What is written on the command line for it."""
    value: Value = None
    is_flag: bool = False
    """Whether no value follows it."""
    of_launcher: bool = False
    """Whether it goes to the launcher, before the script."""

    @property
    def kind(self) -> Kind:
        return NAMES[self.dest]


def options_of_words(words: Sequence[str]) -> list[Option]:
    """Those that stand in a command; with the Trainer's among them, what else the Trainer knows, at its defaults."""
    given = {_dest(word): index for index, word in enumerate(words) if word.startswith("--")}
    options = [_of_word(words, index, dest) for dest, index in given.items() if dest in NAMES]
    if any(name in given for name in _OF_TRAINER):
        defaults: dict[str, Value] = {"gradient_accumulation_steps": 1, "gradient_checkpointing": False, "bf16": False}
        options += [Option(dest=d, names=[f"--{d}"], value=v) for d, v in defaults.items() if d not in given]
    return options


def _dest(word: str) -> str:
    return word.partition("=")[0].lstrip("-").replace("-", "_")


def _of_word(words: Sequence[str], index: int, dest: str) -> Option:
    name, equals, value = words[index].partition("=")
    following = words[index + 1] if index + 1 < len(words) and not words[index + 1].startswith("-") else ""
    text = value if equals else following
    return Option(dest=dest, names=[name], value=_read(text, NAMES[dest]))


def _read(text: str, kind: Kind) -> Value:
    if kind in (Kind.BATCH, Kind.PASSES):
        return int(text) if text.isascii() and text.isdecimal() else None
    if kind is Kind.MIXED_PRECISION:
        return text or None
    return text.lower() not in ("false", "no", "n", "f", "0")
