"""A rank that its emulated GPU has too little memory for, played once more on one that has room for everything.

How much is missing is what a refused allocation does not say: what would have come after it is not known then. The
card's size is ours to choose, so the same rank is played again, and the record says both: what was refused on the GPU
that was asked for, and what the work needs in all.
"""

import os

from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Status
from zerobench.config.hardware.hardware import known_gpu
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.emulator.gpu import VARIABLE, EmulatedGpu
from zerobench.records.records import RankRecord

AGAIN = 75
"""Exit status of a trial's process that asks for another one, with room (EX_TEMPFAIL)."""


def may_be_played_again(trial: TrialSpec, record: RankRecord) -> bool:
    """Whether the GPU refused, and there is another."""
    return trial.evidence is Evidence.EMULATED and record.status is Status.OUT_OF_DEVICE_MEMORY


def make_room(trial: TrialSpec) -> None:
    """From now on this process's GPU holds whatever is asked for; it must not have been touched yet."""
    os.environ[VARIABLE] = _gpu(trial).boundless.variable(trial.gpus_per_node)


def with_need(trial: TrialSpec, refused: RankRecord, played: RankRecord) -> RankRecord:
    """The record of the play with room, which did not fit as `refused` says; `refused` where that play failed too.

    It needs no less than was in use and asked for when it was refused: an allocator that has given segments back may
    lay what follows out worse than one that never had to.
    """
    failure, outside = refused.failure, played.context
    if played.status is not Status.COMPLETED or failure is None:
        return refused
    held = max((row.held_bytes for row in played.device_memory), default=0)
    needed = held + ((outside.context_bytes or 0) + (outside.collectives_bytes or 0) if outside else 0)
    there = _gpu(trial).memory_bytes
    if failure.bytes_asked is not None and failure.bytes_free is not None:
        needed = max(needed, there - failure.bytes_free + failure.bytes_asked)
    message = f"it needs {format_bytes(needed)} of {format_bytes(there)}: {failure.message}"
    failure_with_need = failure.model_copy(update={"message": message, "bytes_needed": needed})
    return played.model_copy(update={"status": refused.status, "failure": failure_with_need})


def _gpu(trial: TrialSpec) -> EmulatedGpu:
    return EmulatedGpu.build(known_gpu(trial.prediction.gpu or ""))
