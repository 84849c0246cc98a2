"""Memory over start-up and a step as trials keep it, made by simple arithmetic."""

from collections.abc import Mapping

from zerobench.common.vocabulary import Category, Phase, StepKind
from zerobench.records.folder import RunFolder, write_whole
from zerobench.records.records import MemoryCourse, MemoryCourses

MIB = 2**20


def write_courses(folder: RunFolder, tops_mib: Mapping[str, int]) -> None:
    """Rank 0 of each trial, by its id, with the most that it held of gradients."""
    for trial_id, top in tops_mib.items():
        write_whole(folder.trial(trial_id).memory_courses(0), _courses(trial_id, top * MIB).model_dump_json())


def _courses(trial_id: str, top: int) -> MemoryCourses:
    """A step that holds 1 MiB of parameters, and up to `top` bytes of gradients at the end of each phase."""
    held = {Category.PARAMETERS: [MIB] * 3, Category.GRADIENTS: [0, top // 2, top]}
    sites = {Category.GRADIENTS: "deepspeed/engine.py:step"}
    phases = [
        MemoryCourse(step=step, phase=phase, num_events=9, events=[0, 4, 9], sizes_bytes=held, sites=sites)
        for step, phase in [(StepKind.FIRST, Phase.INIT), *((StepKind.STEADY, p) for p in Phase if p is not Phase.INIT)]
    ]
    return MemoryCourses(trial_id=trial_id, rank=0, phases=phases)
