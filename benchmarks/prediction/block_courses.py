"""The order in which a training step makes and drops its large tensors, as closed forms play it through an allocator.

    python benchmarks/prediction/block_courses.py [--check]

Simulates models of five and six blocks of each kind with and without checkpointing, writes what happens in a steady
step as a course of sections (zerobench/estimate/memory/course.py says how one is read) to
zerobench/estimate/memory/courses.json, and with `--check` only says whether what is written there is still so. What
repeats from block to block is found, not told.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product, takewhile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.prediction.simulated import GPU, gpu_trial
from zerobench.common.vocabulary import Phase, StepKind
from zerobench.config.deepspeed import build_ds_config
from zerobench.config.deepspeed.case import Case
from zerobench.config.hardware.overheads import workspace_of
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.estimate.memory.course import BUCKET, COURSES, GRADIENT, KINDS, sizes_of
from zerobench.launch.run.setup import lay_out_trial
from zerobench.rank.loop.forked_trial import run_trial
from zerobench.rank.loop.simulator import import_everything
from zerobench.records.folder import TrialFolder, write_whole

BLOCKS = (5, 6)
PASSES = (Phase.FORWARD, Phase.BACKWARD)
_DIMENSIONS = {"hidden_size": 384, "num_heads": 6, "vocab_size": 4999}
_MODELS: dict[str, dict[str, object]] = {
    "gpt2": {"family": "gpt2"},
    "llama": {"family": "llama", "num_kv_heads": 2, "intermediate_size": 832},
}

Event = tuple[str, int]
"""What is made (its size by name) under its number, or what is dropped ("", its number)."""


@dataclass(frozen=True)
class Pass:
    """A pass over the blocks: its events, and where those that repeat begin, how many they are and how often."""

    events: Sequence[Event]
    start: int
    period: int
    repeats: int

    def sections(self) -> Iterator[tuple[str, int, Sequence[Event]]]:
        """Name, which of its kind, and events of each section."""
        end = self.start + self.period * self.repeats
        yield "before", 0, self.events[: self.start]
        for turn in range(self.repeats):
            yield "block", turn, self.events[self.start + turn * self.period :][: self.period]
        yield "after", 0, self.events[end:]


def trial_of(kind: str, *, checkpoints: bool, blocks: int, stage: int) -> TrialSpec:
    """What is recorded: dimensions that no product confuses."""
    model = resolve_model({"name": "recorded", "num_layers": blocks} | _DIMENSIONS | _MODELS[kind])
    return gpu_trial(model, stage, 8, activation_checkpointing=checkpoints, sequence_length=128, micro_batch_size=47)


Recorded = Mapping[tuple[StepKind, Phase], Sequence[tuple[int, int]]]
"""Of each pass, storages of the device and by how much they grew."""


def recorded(trials: Sequence[TrialSpec]) -> Iterator[Recorded]:
    """What happens in the passes of each trial."""
    import_everything(Evidence.SIMULATED)
    with tempfile.TemporaryDirectory() as place:
        for number, trial in enumerate(trials):
            folder = TrialFolder(Path(place, str(number)))
            lay_out_trial(folder, trial, build_ds_config(trial))
            file = Path(place, f"{number}.json")
            if not (child := os.fork()):
                os._exit(_play(folder, file))
            if os.waitpid(child, 0)[1]:
                raise SystemExit(folder.stderr.read_text(encoding="utf-8"))
            events = json.loads(file.read_text(encoding="utf-8"))
            yield {(step, phase): events[f"{step} {phase}"] for step in StepKind for phase in PASSES}


def _play(folder: TrialFolder, file: Path) -> int:
    from zerobench.rank.worlds.simulation.allocator import SimulatedRows as rows  # noqa: N813, PLC0415 -- imports torch

    kept: dict[str, list[tuple[int, int]]] = {}
    waiting: list[tuple[int, int]] = []
    note, start = rows.note, rows._allocators  # noqa: SLF001

    def heard(self: Any) -> Any:
        counter = self._counter
        events = counter.take_device_events()
        waiting.extend((entry.serial, delta) for entry, delta, _ in events)
        counter._device_events = events  # noqa: SLF001
        return start(self)

    def noted(self: Any, step: StepKind, phase: Phase, *rest: Any) -> None:
        note(self, step, phase, *rest)
        kept.setdefault(f"{step} {phase}", list(waiting))
        waiting.clear()

    setattr(rows, "_allocators", heard)  # noqa: B010 -- in this fork alone
    setattr(rows, "note", noted)  # noqa: B010
    status = run_trial(folder, with_room=False)
    write_whole(file, json.dumps(kept))
    return int(status)


def named(kind: str, trial: TrialSpec, events: Recorded, step: StepKind = StepKind.STEADY) -> dict[Phase, list[Event]]:
    """The events of a step's tensors whose size has a name, numbered as they are made, and where the reduce bucket is
    made; what the step before made is left out.
    """
    names = {nbytes: name for name, nbytes in reversed(sizes_of(kind, trial).items())}
    bucket_bytes = Case(build_ds_config(trial), trial.world_size, 0).bucket_bytes
    numbers: dict[int, int] = {}
    by_phase: dict[Phase, list[Event]] = {phase: [] for phase in PASSES}
    for phase in PASSES:
        for serial, delta in events[step, phase]:
            name = names.get(delta, "")
            if delta == bucket_bytes:
                by_phase[phase].append((BUCKET, -1))
            elif name and not (phase is Phase.FORWARD and name.startswith(GRADIENT)):  # those are gathered weights
                numbers[serial] = len(numbers)
                by_phase[phase].append((name, numbers[serial]))
            elif delta < 0 and serial in numbers:
                by_phase[phase].append(("", numbers[serial]))
    return by_phase


def workspaces(kind: str, trial: TrialSpec, events: Recorded) -> list[str]:
    """After how many tensors of a pass in a steady step the matrix library would take the workspace of the first one.

    Weights may be gathered in the first step alone, so it is counted in others, and on by the gradients after those.
    """
    taken = workspace_of(GPU).workspace_bytes
    names = {nbytes: name for name, nbytes in reversed(sizes_of(kind, trial).items())}
    counts = []
    for phase, steady in named(kind, trial, events).items():
        before = takewhile(lambda event: event[1] != taken, events[StepKind.FIRST, phase])
        are_gradients = [names[delta].startswith(GRADIENT) for _, delta in before if delta in names]
        since = len(list(takewhile(bool, reversed(are_gradients))))
        others = [at for at, (name, _) in enumerate(filter(_is_made, steady)) if not name.startswith(GRADIENT)]
        counts.append(str(others[are_gradients.count(False) - 1] + 1 + since))
    return counts


def _is_made(event: Event) -> bool:
    return event[0] not in {"", BUCKET}


def passes(events: Mapping[Phase, Sequence[Event]], blocks: int) -> dict[Phase, Pass]:
    """Where each pass repeats itself: the longest stretch in which the kinds of events are those of a period before."""
    return {phase: _repeating(events[phase], blocks) for phase in PASSES}


def _repeating(events: Sequence[Event], blocks: int) -> Pass:
    kinds = [name for name, _ in events]
    best = Pass(events, 0, len(events), 1)
    for period in range(10, len(kinds) // (blocks - 2)):
        same = [kind == other for kind, other in zip(kinds, kinds[period:], strict=False)]
        length, begin = max(_stretches(same))
        repeats = length // period + 1
        if repeats >= blocks - 2 and repeats * period > best.repeats * best.period * (best.repeats > 1):
            best = Pass(events, begin, period, repeats)
    return Pass(
        events, best.start + best.period, best.period, best.repeats - 2
    )  # the first and the last are no others'


def _stretches(same: Sequence[bool]) -> Iterator[tuple[int, int]]:
    begin = 0
    for index, is_same in enumerate([*same, False]):
        if not is_same:
            yield index - begin, begin
            begin = index + 1


def courses() -> dict[str, dict[str, list[str]]]:
    """The course of each kind, with and without checkpointing, at stage 3 and below."""
    combinations = list(product(KINDS, (False, True), (2, 3)))
    trials = {
        (kind, checkpoints, stage): [trial_of(kind, checkpoints=checkpoints, blocks=n, stage=stage) for n in BLOCKS]
        for kind, checkpoints, stage in combinations
    }
    played = recorded([trial for combination in combinations for trial in trials[combination]])
    by_name = {}
    for kind, checkpoints, stage in combinations:
        pair = []
        for trial in trials[kind, checkpoints, stage]:
            events = next(played)
            pair.append(named(kind, trial, events))
            taken = workspaces(kind, trial, events)
        name = f"{kind}{' checkpointed' if checkpoints else ''}{' stage 3' if stage == 3 else ''}"
        by_name[name] = _written(*map(passes, pair, BLOCKS)) | {"workspaces": taken}
    return by_name


def _written(fewer: Mapping[Phase, Pass], more: Mapping[Phase, Pass]) -> dict[str, list[str]]:
    """Sections by name. What is dropped is number x + y R + z t of what was made, where the blocks of the forward pass
    repeat R times and t counts the turns of this section.
    """
    repeats = fewer[Phase.FORWARD].repeats
    sections: dict[str, list[str]] = {}
    for phase in PASSES:
        both = [{(name, turn): part for name, turn, part in course[phase].sections()} for course in (fewer, more)]
        for name in ("before", "block", "after"):
            here, there, next_turn = both[0][name, 0], both[1][name, 0], both[0].get((name, 1))
            if len(here) != len(there):
                raise SystemExit(f"{phase} {name}: {len(here)} events with fewer blocks, {len(there)} with more")
            sections[f"{phase} {name}"] = [
                event[0] or _reference(event[1], there[i][1], None if next_turn is None else next_turn[i][1], repeats)
                for i, event in enumerate(here)
            ]
    if BUCKET not in sections["backward before"]:  # stage 3 has it from initialisation on
        sections["backward before"].append(BUCKET)
    sections["turns"] = [str(fewer[phase].repeats - BLOCKS[0]) for phase in PASSES]
    return sections


def _reference(here: int, with_one_more: int, next_turn: int | None, repeats: int) -> str:
    y = with_one_more - here
    z = 0 if next_turn is None else next_turn - here
    return f"-{here - y * repeats} {y} {z}"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where what is written is no longer so")
    check = parser.parse_args().check
    lines = ",\n".join(
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f"  {json.dumps(part)}: {json.dumps(' | '.join(events))}" for part, events in course.items())
        + "\n}"
        for name, course in courses().items()
    )
    text = f"{{\n{lines}\n}}\n"
    if check:
        is_so = COURSES.read_text(encoding="utf-8") == text
        print(f"{COURSES.name}: {'as recorded' if is_so else 'the engines take another course now; make it anew'}")
        return int(not is_so)
    write_whole(COURSES, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
