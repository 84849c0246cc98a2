"""`zerobench compare`: the same trials in two runs, side by side, across versions of DeepSpeed, torch or the driver.

    comparison = compare(load_run(base), load_run(new))
    parts = comparison_parts(comparison)                       # report/tables/two_runs.py
    verdicts = judge(comparison, parse_limits("memory:2%"))    # gate.py

Trials are the same where they did the same work (config_hash) and their figures are obtained in the same way
(evidence). A trial that no other equals is compared with the only one that differs from it in nothing but the DeepSpeed
configuration: what changed there is part of the answer (configuration.py). memory.py and speed.py say what may be
concluded.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from zerobench.common.grouped import grouped
from zerobench.config.trial.trial import TrialSpec
from zerobench.records import store
from zerobench.report.figures.compare.configuration import SettingChange, setting_changes
from zerobench.report.figures.compare.environment import Fact, facts
from zerobench.report.figures.compare.memory import MemoryChange, memory_changes
from zerobench.report.figures.compare.sides import (
    Repeat,
    Side,
    Work,
    side_of,
    work_with_file_named,
    work_without_configuration,
)
from zerobench.report.figures.compare.speed import SpeedChange, speed_change
from zerobench.report.figures.gradient_parity import NORM_TOLERANCES, largest_distance, num_stable_steps
from zerobench.report.figures.parity import TOLERANCES, largest_difference
from zerobench.report.words.labels import labels, shared_lines

Repeats = Sequence[Repeat]


@dataclass(frozen=True)
class SharedTrial:
    """One piece of work that both runs had in their plans."""

    label: str
    base: Repeats
    new: Repeats
    memory: Sequence[MemoryChange]
    speed: SpeedChange | None

    @property
    def stopped_completing(self) -> bool:
        """True if a smaller share of NEW's repeats completed than of BASE's."""
        return _completed_share(self.new) < _completed_share(self.base)

    @property
    def ran_in_both(self) -> bool:
        """True if a repeat completed in each run, so that there are figures to expect."""
        return _completed_share(self.base) > 0 and _completed_share(self.new) > 0

    @property
    def losses_apart(self) -> tuple[float, float] | None:
        """Distance of the losses of the two runs, and the tolerance; None where they agree or are not known."""
        pairs = [(a.losses[: num_stable_steps(a.grad_norms)], b.losses) for a in self.base for b in self.new]
        distances = [apart for a, b in pairs if (apart := largest_difference(a, b)) is not None]
        return _beyond(distances, TOLERANCES[self.base[0].spec.precision])

    @property
    def norms_apart(self) -> tuple[float, float] | None:
        """The same of the gradients' norms, as a fraction: a wrong scale of them changes no loss under AdamW."""
        precision = self.base[0].spec.precision
        pairs = [(a.grad_norms[: num_stable_steps(a.grad_norms)], b.grad_norms) for a in self.base for b in self.new]
        distances = [apart for a, b in pairs if (apart := largest_distance(a, b, precision)) is not None]
        return _beyond(distances, NORM_TOLERANCES[precision])


def _beyond(distances: Sequence[float], tolerance: float) -> tuple[float, float] | None:
    """The largest of `distances` and the tolerance, where it is larger."""
    return (max(distances), tolerance) if distances and max(distances) > tolerance else None


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side."""

    base: Side
    new: Side
    same: Sequence[SharedTrial]
    only_base: Sequence[str]
    """Names of the trials that NEW's plan lacks."""
    only_new: Sequence[str]
    facts: Sequence[Fact]
    shared: Sequence[str]
    """Settings that the names of the trials leave out, and meanings of their letters."""
    configuration: Sequence[SettingChange] = ()
    """Changes of the trials' DeepSpeed configurations in NEW."""

    @property
    def peaks(self) -> list[MemoryChange]:
        """The peaks that both runs measured."""
        return [change for same in self.same for change in same.memory]


def compare(base: store.Run, new: store.Run) -> Comparison:
    """The trials of `base` beside those of `new`, in the order of BASE's plan.

    Raises UserError: a record of one of them is torn, corrupt, newer than this version, or holds an impossible value.
    """
    left, right = side_of(base), side_of(new)
    pairs = list(_pairs(left, right))
    specs = [(old or late)[0].spec.model_copy(update={"repeat": 0}) for old, late in pairs]  # no name says which
    named = list(zip(labels(specs), pairs, strict=True))
    shared = [(name, old[0], late[0]) for name, (old, late) in named if old and late]
    return Comparison(
        base=left,
        new=right,
        same=[
            SharedTrial(name, old, late, memory_changes(name, old, late), speed_change(old, late))
            for name, (old, late) in named
            if old and late
        ],
        only_base=[name for name, (_, late) in named if not late],
        only_new=[name for name, (old, _) in named if not old],
        facts=facts(left, right),
        shared=shared_lines(specs),
        configuration=setting_changes(base, new, [(name, a.trial_id, b.trial_id) for name, a, b in shared]),
    )


def _completed_share(repeats: Repeats) -> float:
    return sum(repeat.completed for repeat in repeats) / len(repeats)


def ended(repeats: Repeats) -> str:
    """`completed`, or `3 completed, 1 out of device memory` where repeats differ."""
    words = [repeat.status.replace("_", " ") for repeat in repeats]
    kinds = dict.fromkeys(words)
    return words[0] if len(kinds) == 1 else ", ".join(f"{words.count(kind)} {kind}" for kind in kinds)


def _pairs(base: Side, new: Side) -> Iterator[tuple[Repeats, Repeats]]:
    """The repeats of each piece of work in both runs; empty where one of them lacks it."""
    renamed = _works_in_base(base, new)
    theirs = {renamed.get(work, work): repeats for work, repeats in new.repeats.items()}
    for work in dict.fromkeys([*base.repeats, *theirs]):
        sides = base.repeats.get(work, ()), theirs.get(work, ())
        # Two devices in one run are two trials of one work; else the folder's name on NVMe is no matter.
        left, right = (grouped(side, lambda repeat: repeat.spec.nvme_path) for side in sides)
        if max(len(left), len(right)) < 2:
            yield sides
        else:
            yield from ((left.get(path, ()), right.get(path, ())) for path in dict.fromkeys([*left, *right]))


def _works_in_base(base: Side, new: Side) -> dict[Work, Work]:
    """Return, for work of NEW that BASE lacks, the work of BASE to compare it with, where only one can be meant.

    Work under another configuration can be meant only where no two trials agree in everything: of a sweep over
    configurations one may be gone and another added.
    """
    agreeing = base.repeats.keys() & new.repeats.keys()
    found: dict[Work, Work] = {}
    for key in (work_with_file_named, work_without_configuration):
        taken = {*agreeing, *found, *found.values()}
        ours, theirs = (_grouped(side, key) for side in (base, new))
        for kind in ours.keys() & theirs.keys():
            old, late = (set(works[kind]) for works in (ours, theirs))
            if key is work_with_file_named:
                old, late = old - taken, late - taken
            if len(old) == len(late) == 1:
                found[late.pop()] = old.pop()
    return found


def _grouped(side: Side, key: Callable[[TrialSpec], Work]) -> Mapping[Work, Sequence[Work]]:
    """The works of `side`, by `key` of what was asked."""
    return grouped(side.repeats, lambda work: key(side.repeats[work][0].spec))
