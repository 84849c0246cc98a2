"""Reasons why a trial did not complete: requested and free memory, the rule if skipped, predictions of its need."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Category, Place, Status
from zerobench.config.hardware.hardware import find_gpu
from zerobench.config.trial.trial import Evidence
from zerobench.records.folder import SNAPSHOT
from zerobench.records.records import Failure
from zerobench.records.trials import Trial, completed
from zerobench.report.explain.savings import Estimates
from zerobench.report.explain.topic import Line, Topic, phase_words, says
from zerobench.report.figures.capacity import device_needs, total_needs, when_needed
from zerobench.report.figures.predictions.errors import PHASES
from zerobench.report.figures.standing import host_standing_lines, host_standing_of, standing_lines

_TRACEBACK = "Traceback (most recent call last)"
_PREFIX = re.compile(r"^\s*\[rank\d+\]: ?")
"""torch's, before each line of a rank's traceback."""
_FRAME = re.compile(r'^\s+File "([^"]+)", line (\d+)(?:, in (\S+))?')
_ERROR = re.compile(r"^[A-Za-z_][\w.]*(: .*)?$")
_INSTALLED = re.compile(
    r"[/\\](site-packages|dist-packages|lib[/\\]python\d[^/\\]*)[/\\]"
    r"|[/\\]zerobench[/\\](rank|launch[/\\](machine|run|setup|tracking)|memory|running|tracking|worker|worker_tensorflow)[/\\]|^<"
)
"""Files of installed packages, of Python itself and of zerobench."""
_LAUNCHERS = re.compile(r"^(subprocess\.CalledProcessError|torch\.distributed\.\S*ChildFailedError|SystemExit)\b")
"""Exceptions that launchers raise because a rank failed: they do not have the cause."""
_MOST_ERRORS = 2
_MOST_LINES = 3


def printed_lines(evidence: str) -> list[str]:
    """The error at the end of the output in `evidence`; without a traceback its last lines."""
    fact, _, output = evidence.partition("; last lines:\n")
    lines = [_PREFIX.sub("", line) for line in output.splitlines()]
    errors = dict(_errors(lines))
    causes = [error for error in errors if not _LAUNCHERS.match(error)] or list(errors)
    if not causes:
        ending = [line.strip() for line in lines if line.strip() and not line.startswith("== ")]
        return [f"Evidence: {fact}.", *(f"Printed last: {line}" for line in ending[-_MOST_LINES:])]
    sentences = [f"Evidence: {fact}."]
    for error in causes[:_MOST_ERRORS]:
        sentences += [f"Error: {error}", *([f"In your code: {errors[error]}"] if errors[error] else [])]
    return sentences


def own_frame(frames: Sequence[str]) -> str | None:
    """The innermost of a traceback's lines that is of no installed package, with its source: `train.py:41, in main:
    loss = model(batch)`.
    """
    place = None
    for at, line in enumerate(frames):
        match = _FRAME.match(line)
        if match is None or _INSTALLED.search(match[1]):
            continue
        source = frames[at + 1].strip() if at + 1 < len(frames) and not _FRAME.match(frames[at + 1]) else ""
        where = f"{match[1]}:{match[2]}{f', in {match[3]}' if match[3] else ''}"
        place = f"{where}: {source}" if source else where
    return place


def _errors(lines: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """The last line of each traceback with the user's frame in it; the first may have lost its beginning."""
    frames: list[str] = []
    for line in lines:
        if _TRACEBACK in line:
            frames = []
        elif frames and _ERROR.match(line):
            yield line.strip(), own_frame(frames)
            frames = []
        elif line.startswith((" ", "\t")) and (frames or _FRAME.match(line)):
            frames.append(line)


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
    lines = says(f"{sentence}{_place_words(failure) if failure else ''}: {reason.rstrip('.')}.")
    lines += [*says(*_request(failure)), *_standing(failure)] if failure else []
    lines += [*_host_standing(trial), *says(*_reached(trial), *_predicted(trial, alike, estimates))]
    return Topic("Why it did not complete", lines)


def _place_words(failure: Failure) -> str:
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
    """Memory held on the device when it refused."""
    if failure.standing is None:
        return
    for title, pieces in standing_lines(failure.standing, failure.bytes_asked, failure.bytes_free):
        yield from says(f"At the failed allocation, {title}:")
        yield from says(*pieces, depth=1)
    if failure.rank is not None:
        yield from says(f"torch's own snapshot at that point: {SNAPSHOT.format(failure.rank)} in the trial's folder.")


def _host_standing(trial: Trial) -> Iterator[Line]:
    """Memory held on the host, where its memory was refused or a prediction needs more than there is."""
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
