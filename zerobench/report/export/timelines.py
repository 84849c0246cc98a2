"""Device memory of a trial's ranks by category over start-up and a steady step, as the viewers of others draw it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zerobench.common.vocabulary import Category
from zerobench.config.trial.trial import Evidence
from zerobench.records import store
from zerobench.records.records import MemoryCourse
from zerobench.records.trials import ended_trials, losses_alone, refuse_impossible_values
from zerobench.report.figures.memory_courses import ranks_with_courses, read_courses
from zerobench.report.words.labels import labels

NOTHING_KEPT = "no memory over the step recorded; trials with memory steps record it"
"""Message for a run without any."""


@dataclass(frozen=True)
class Timeline:
    """Memory over the step that one rank kept."""

    trial_id: str
    label: str
    """The trial's short name among the run's."""
    evidence: Evidence
    rank: int
    phases: Sequence[MemoryCourse]


def timelines(run: store.Run) -> Iterator[Timeline]:
    """Those of `run`, by trial in the plan's order and by rank.

    Raises UserError: a record is torn, corrupt or newer than this version.
    """
    with refuse_impossible_values(run.folder.trials):
        known = [losses_alone(run.trial(trial.trial_id)) for trial in ended_trials(run)]
        names = labels([trial.spec for trial in known])
    for name, trial in zip(names, known, strict=True):
        folder = run.folder.trial(trial.spec.trial_id)
        ranks = sorted(int(path.stem.rpartition("_")[2]) for path in folder.rank_records())
        for rank in ranks_with_courses(folder, ranks):
            phases = read_courses(folder, rank)
            yield Timeline(trial.spec.trial_id, name, trial.spec.evidence, rank, phases)


def sizes(course: MemoryCourse, instant: int) -> dict[Category, int]:
    """Bytes of each category at one of the instants that were kept."""
    return {category: max(0, over_time[instant]) for category, over_time in course.sizes_bytes.items()}
