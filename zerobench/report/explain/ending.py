"""Why a trial did not complete: what it asked for and what was free, its rule if it was skipped, what was predicted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Category, Place, Status
from zerobench.config.hardware.hardware import find_gpu
from zerobench.config.trial.trial import Evidence
from zerobench.records.folder import SNAPSHOT
from zerobench.records.records import Failure
from zerobench.records.trials import Trial, completed
from zerobench.report.explain.printed import own_frame, printed_lines
from zerobench.report.explain.savings import Estimates
from zerobench.report.explain.topic import Line, Topic, phase_words, says
from zerobench.report.figures.capacity import device_needs, total_needs, when_needed
from zerobench.report.figures.predictions.errors import PHASES
from zerobench.report.figures.standing import host_standing_lines, host_standing_of, standing_lines

_MOST_STACKS = 2


def ending_topic(trial: Trial, alike: Iterable[Trial], estimates: Estimates | None = None) -> Topic | None:
    """Explain how a trial that did not complete ended; None if it completed.

    `alike` are the other trials of the same work.
    """
    if completed(trial):
        on_host = list(_host_standing(trial))
        return Topic("Does not fit the host", on_host) if on_host else None
    record = trial.record
    sentence = f"The trial ended as {record.status.words}"
    if record.status is Status.SKIPPED:
        rule = f" by the rule {record.rule}" if record.rule else ""
        lines = says(f"The trial was skipped{rule}: {record.reason or 'no reason recorded'}.")
        return Topic("Why it did not run", lines)
    failure = record.failure
    reason = record.reason or (failure.message if failure else "no reason recorded")
    lines = says(f"{sentence}{_where(failure) if failure else ''}: {reason.rstrip('.')}.")
    lines += [*says(*_request(failure)), *_standing(failure)] if failure else []
    lines += [*_host_standing(trial), *says(*_reached(trial), *_predicted(trial, alike, estimates))]
    return Topic("Why it did not complete", lines)


def _where(failure: Failure) -> str:
    step = "" if failure.step_index is None or failure.step_index < 0 else f" of step {failure.step_index + 1}"
    names = {"init": "initialization", "step": f"the update{step}"}
    phase = "" if failure.phase is None else names.get(failure.phase.value, failure.phase.value + step)
    return f"{f', in {phase}' if phase else ''}{'' if failure.rank is None else f', on rank {failure.rank}'}"


def _request(failure: Failure) -> Iterator[str]:
    if failure.bytes_asked is not None:
        free = "" if failure.bytes_free is None else f", {format_bytes(failure.bytes_free)} free"
        yield f"Requested: {format_bytes(failure.bytes_asked)}{free}."
        if failure.bytes_free is not None and failure.bytes_asked > failure.bytes_free:
            yield f"At least {format_bytes(failure.bytes_asked - failure.bytes_free)} were missing."
        elif failure.bytes_free is not None:
            yield "Free memory by the driver's count was larger: cause unknown."
    if failure.evidence:
        yield from printed_lines(failure.evidence)
    if failure.exception:
        yield f"Exception: {failure.exception}."
    if failure.traceback and (frame := own_frame(failure.traceback.splitlines())):
        yield f"In your code: {frame}"
    for rank, stack in sorted(failure.stacks.items())[:_MOST_STACKS]:
        yield f"Rank {rank} was at: {_innermost(stack)}"


def _standing(failure: Failure) -> Iterator[Line]:
    """What stood on the device when it refused."""
    if failure.standing is None:
        return
    for title, pieces in standing_lines(failure.standing, failure.bytes_asked, failure.bytes_free):
        yield from says(f"At the failed allocation, {title}:")
        yield from says(*pieces, depth=1)
    if failure.rank is not None:
        yield from says(f"torch's own snapshot at that point: {SNAPSHOT.format(failure.rank)} in the trial's folder.")


def _host_standing(trial: Trial) -> Iterator[Line]:
    """What was held of the host, where its memory was refused or a prediction needs more than there is."""
    standing = host_standing_of(trial)
    if standing is None:
        return
    for title, pieces in host_standing_lines(standing):
        yield from says(f"{title[0].upper()}{title[1:]}{':' if pieces else '.'}")
        yield from says(*pieces, depth=1)


def _innermost(stack: str) -> str:
    """The innermost frame of the thread that took the signal, as faulthandler writes it."""
    lines = [line.strip() for line in stack.splitlines() if line.strip()]
    current = next((at for at, line in enumerate(lines) if line.startswith("Current thread")), -1)
    return next((line for line in lines[current + 1 :] if line.startswith("File ")), lines[0] if lines else "unknown")


def _reached(trial: Trial) -> Iterator[str]:
    """The last phase that the ledger closed, on the rank that holds most there."""
    of_device = (Place.DEVICE, Category.TOTAL)
    rows = [(row, rank.rank) for rank in trial.ranks for row in rank.memory if (row.place, row.category) == of_device]
    ends = [(PHASES.index((row.step, row.phase)), row.live_bytes, rank) for row, rank in rows]
    if ends:
        last, nbytes, rank = max(ends)
        step, phase = PHASES[last]
        yield (
            f"Last phase completed by the ledger: {phase_words(step.value, phase.value)}, with "
            f"{format_bytes(nbytes)} live at its end on rank {rank}."
        )


def _predicted(trial: Trial, alike: Iterable[Trial], estimates: Estimates | None) -> Iterator[str]:
    """Yield the need by predictions of the same work in the run, else by closed forms."""
    is_predicted = False
    for other in alike:
        needs = total_needs(device_needs(other)) if completed(other) else {}
        if other.spec.evidence is not Evidence.MEASURED and needs:
            is_predicted = True
            most, when = format_bytes(max(needs.values())), when_needed(needs)
            yield f"The {other.spec.evidence.value} trial of the same work needs {most} ({when})."
    ran_out = trial.record.failure and trial.record.status is Status.OUT_OF_DEVICE_MEMORY
    if estimates is None or is_predicted or not ran_out:
        return
    needed = estimates.needed_bytes(trial)
    if needed is not None:
        yield f"By closed forms its tensors need {format_bytes(needed)}{_capacity(trial)}."


def _capacity(trial: Trial) -> str:
    sizes = [device.total_bytes for node in trial.record.nvml for device in node.devices if device.total_bytes]
    gpu = find_gpu(trial.spec.prediction.gpu) if trial.spec.prediction.gpu else None
    size = min(sizes, default=gpu.capacity_bytes if gpu else None)
    return "" if size is None else f", and the device has {format_bytes(size)}"
