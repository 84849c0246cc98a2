"""The memory over start-up and a step that trials kept, in the order in which it ran."""

from collections.abc import Iterable

from zerobench.common.vocabulary import Phase
from zerobench.records import store
from zerobench.records.folder import TrialFolder
from zerobench.records.records import MemoryCourse, MemoryCourses

_ORDER = list(Phase)
_TITLES = {Phase.INIT: "start-up", Phase.STEP: "optimizer step"}


def ranks_with_courses(folder: TrialFolder, ranks: Iterable[int]) -> list[int]:
    """Those of `ranks` that kept one."""
    return [rank for rank in ranks if folder.memory_courses(rank).exists()]


def read_courses(folder: TrialFolder, rank: int) -> list[MemoryCourse]:
    """Its phases, without those that held nothing.

    Raises UserError: it is torn, corrupt or newer than this version.
    """
    phases = store.read_record(folder.memory_courses(rank), MemoryCourses).phases
    return sorted((course for course in phases if course.sizes_bytes), key=lambda course: _ORDER.index(course.phase))


def title(course: MemoryCourse) -> str:
    """The phase in words."""
    return _TITLES.get(course.phase, course.phase.value)
