"""The order in which a training step makes and drops its large tensors, read from what was recorded of the engines.

What an allocator holds beyond tensors depends on their order. `courses.json` has it for each kind of model, with and
without checkpointing: sections of the forward and the backward pass, before the blocks, for each block, and after them.
benchmarks/prediction/block_courses.py recorded them, found what repeats, and says whether they are still so.

A name is a tensor that is made; `-x y z` drops number x + y R + z t. Tensors are numbered as they are made, R is
how often the forward pass repeats its section, t how often this section has been. Names are sizes: T tokens of a
micro batch, b sequences of s tokens, h hidden size, f width of the MLP, V vocabulary, k width of the keys, a heads, p
positions that have an embedding; 4Th has 4 bytes for each of T h. W stands before gradients of weights, which have two
bytes an element. `bucket` is where the first gradient is copied into the reduce bucket, which is made then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from zerobench.common.vocabulary import Phase, StepKind
from zerobench.config.hardware.overheads import workspace_of
from zerobench.config.models.architecture import complete, dimensions
from zerobench.config.trial.trial import Attention, Precision, TrialSpec
from zerobench.estimate.memory.terms.activations import trial_shape

COURSES = Path(__file__).with_name("courses.json")
KINDS: Mapping[str, tuple[str, ...]] = {"gpt2": ("gpt2",), "llama": ("llama", "mistral", "qwen2")}
"""Model types whose steps are alike."""

GRADIENT = "W"
BUCKET = "bucket"
KEPT, BUCKETED = -1, -2
"""The numbers of what is never dropped, and of the event that the first gradient has been handed on."""
_PASSES = (Phase.FORWARD, Phase.BACKWARD)
LEAST_BLOCKS = 3


class Event(NamedTuple):
    """Something is made, or with 0 bytes dropped; or the first gradient is handed on."""

    phase: Phase
    section: str
    """`before`, `block` or `after`."""
    number: int
    nbytes: int
    is_gradient: bool


def sizes_of(kind: str, trial: TrialSpec) -> dict[str, int]:
    """Bytes of each name in courses of `kind`; of names for equal sizes the first is the one that is used."""
    shape = trial_shape(trial)
    tokens, h, f, vocabulary = shape.tokens, shape.hidden_size, shape.intermediate_size, shape.vocab_size
    k, a = shape.num_kv_heads * shape.head_dim, shape.num_heads
    widths = {"V": (vocabulary, (2, 4)), "f": (f, (2, 4)), "h": (h, (1, 2, 4)), "k": (k, (1, 2, 4)), "": (1, (1, 4, 8))}
    fused = {"hkk": h + 2 * k, "ha": h + a, "a": a}
    sizes = {f"{each}T{name}": each * tokens * width for name, (width, whole) in widths.items() for each in whole}
    sizes |= {"2Thkk": 2 * tokens * fused["hkk"], "4Tha": 4 * tokens * fused["ha"], "4Ta": 4 * tokens * a}
    sizes["8Tb"] = 8 * (tokens + tokens // shape.sequence_length)  # labels, one longer to be shifted
    matrices = {"Vh": vocabulary * h, "hf": h * f, "hh": h * h}
    if kind == "gpt2":
        sizes["2sh"] = 2 * shape.sequence_length * h
        matrices |= {"hhkk": h * (h + 2 * k), "ph": complete(trial.model)["n_positions"] * h}
    else:
        matrices["hk"] = h * k
    return sizes | {GRADIENT + name: 2 * elements for name, elements in matrices.items()}


def kind_of(trial: TrialSpec) -> str | None:
    """The kind of course that the passes of `trial` take; None where none was recorded."""
    kind = next((kind for kind, types in KINDS.items() if trial.model.model_type in types), None)
    usual = (
        trial.prediction.gpu is not None
        and trial.trains_all
        and trial.precision is not Precision.FP32
        and trial.attention is not Attention.EAGER
        and trial.activation_checkpointing in {True, False}
        and (dimensions(trial.model).num_layers or 0) >= LEAST_BLOCKS
    )
    return kind if usual else None


Course = Mapping[Phase, list[Event]]
"""Of both passes of a micro batch."""


def course_of(kind: str, trial: TrialSpec, step: StepKind) -> Course:
    """The events of a step of `trial`; in the first the matrix library takes a workspace in each pass and keeps it."""
    sections = _sections(kind, trial)
    turns = [trial_shape(trial).num_layers + int(turn) for turn in sections["turns"]]
    events = list(_events(sections, turns, sizes_of(kind, trial)))
    course = {phase: [event for event in events if event.phase is phase] for phase in _PASSES}
    if step is StepKind.FIRST and trial.prediction.gpu is not None:
        taken = workspace_of(trial.prediction.gpu).workspace_bytes
        for phase, after in zip(_PASSES, map(int, sections["workspaces"]), strict=True):
            made = [i for i, event in enumerate(course[phase]) if event.nbytes]
            course[phase].insert(made[after - 1] + 1, Event(phase, "before", KEPT, taken, is_gradient=False))
    return course


def _events(sections: Mapping[str, list[str]], turns: Sequence[int], sizes: Mapping[str, int]) -> Iterator[Event]:
    made = 0
    for phase, repeats in zip(_PASSES, turns, strict=True):
        for section, times in (("before", 1), ("block", repeats), ("after", 1)):
            for turn in range(times):
                for word in sections[f"{phase} {section}"]:
                    if word == BUCKET:
                        yield Event(phase, section, BUCKETED, 0, is_gradient=False)
                    elif word.startswith("-"):
                        x, y, z = map(int, word[1:].split())
                        yield Event(phase, section, x + y * turns[0] + z * turn, 0, is_gradient=False)
                    else:
                        yield Event(phase, section, made, sizes[word], word.startswith(GRADIENT))
                        made += 1


def _sections(kind: str, trial: TrialSpec) -> dict[str, list[str]]:
    checkpointed = " checkpointed" if trial.activation_checkpointing else ""
    return _courses()[f"{kind}{checkpointed}{' stage 3' if trial.zero_stage == 3 else ''}"]


@cache
def _courses() -> dict[str, dict[str, list[str]]]:
    read = json.loads(COURSES.read_text(encoding="utf-8"))
    return {name: {part: text.split(" | ") for part, text in course.items()} for name, course in read.items()}
