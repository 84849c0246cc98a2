"""What `zerobench emulate` does: the ranks played, then what the answer stands on, and the answer."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zerobench.app.search.tried import tried_slower
from zerobench.app.terminal.answer import Answer, shortest
from zerobench.app.terminal.live_predictions import Doing
from zerobench.common.units import counted, format_bytes
from zerobench.common.vocabulary import Category, Place, StepKind
from zerobench.config.deepspeed.own_work import work_of
from zerobench.estimate.clock.script_step import NO_TRACE, why_no_script_time
from zerobench.estimate.clock.step import Interval
from zerobench.launch.emulate.emulation import NO_VALUES, Emulation, emulate
from zerobench.launch.emulate.figures import RankFit, Try, Verdict
from zerobench.launch.emulate.part import Account, End, Refusal
from zerobench.launch.emulate.request import EmulationRequest
from zerobench.launch.emulate.tries import ENOUGH
from zerobench.records import store
from zerobench.records.trials import Trial, ended_trials
from zerobench.records.verdict import RunVerdict, TriedChange
from zerobench.report.documents.terminal import in_width
from zerobench.report.explain.changes import slower_text
from zerobench.report.explain.topic import phase_words
from zerobench.report.figures.capacity import reserved_words, when_needed
from zerobench.report.figures.make import trial_figures
from zerobench.report.figures.software import logits_notes, predicted_with, releases
from zerobench.report.figures.standing import host_standing_lines, standing_lines
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.figures.verdict import CHANGES, change_line
from zerobench.report.tables.plan_answer import script_speed

FITS = 0
FITS_NOT = 1
INTERRUPTED = 130
_GIB = 2**30
_SMALLEST_SHOWN = 0.01
"""Categories below this part of a peak are shown together."""


def emulate_command(request: EmulationRequest) -> Answer:
    """Emulate what is asked for."""
    with Doing() as view:
        made = emulate(request, view.say)
    decide(made).keep(made.run)
    kept = list(ended_trials(store.load_run(made.run.path)))
    return Answer(lambda: as_plain(made, kept), lambda: sys.stdout.write(in_width(lines(made, kept))), exit_code(made))


def exit_code(made: Emulation) -> int:
    """0 fits, 1 does not; the script's own status where it failed by itself."""
    failed = made.verdict.failed
    if made.interrupted:
        return INTERRUPTED
    if failed is not None:
        return failed.exit_code or FITS_NOT
    return FITS_NOT if made.verdict.fits is False else FITS


def lines(made: Emulation, kept: Sequence[Trial] = ()) -> Iterator[str]:
    """The figures, then the answer that they come to: it is on the screen when the command ends.

    `kept`: the trial as its run holds it, which says of which releases the figures are.
    """
    verdict = made.verdict
    for rank in verdict.ranks:
        yield from _rank(rank)
    yield from _host(verdict)
    yield from _speed(made)
    yield from _tries(made)
    yield from predicted_with({}, kept)
    yield from (f"note: {note}" for trial in kept for note in logits_notes(trial))
    yield f"{NO_VALUES[0].upper()}{NO_VALUES[1:]}."
    yield ""
    yield _answer(made)
    if made.request.cluster.gpu.capacity_rule:
        yield f"Memory of {made.request.cluster.gpu.name}: {made.request.cluster.gpu.capacity_rule}."
    yield f"Run: {shortest(made.run.path)}"


def decide(made: Emulation) -> RunVerdict:
    """The answer and what it is made of, for every document of the run."""
    verdict = made.verdict
    worst, row = _worst(verdict), _row(made) if _has_speed(made) else None
    expected = None if row is None else row.expected
    return RunVerdict(
        verdict=_answer(made),
        fits=None if made.interrupted or verdict.failed is not None else verdict.fits,
        needed_bytes=None if worst is None else worst.needed_bytes,
        capacity_bytes=made.request.cluster.gpu.capacity_bytes if worst is None else worst.memory_bytes,
        host_needed_bytes=verdict.host_node_bytes,
        host_capacity_bytes=verdict.host_memory_bytes,
        changes=[_change(made, attempt) for attempt in verdict.tries],
        not_tried=verdict.not_tried,
        speed=None if row is None or expected is None else _speed_words(made, row, expected),
        expected_step_s=expected and expected.step_s,
        expected_step_low_s=expected and expected.low_s,
        expected_step_high_s=expected and expected.high_s,
        assumed=[] if expected is None else list(expected.assumptions),
    )


def _worst(verdict: Verdict) -> RankFit | None:
    """The rank that the verdict names: the first that does not fit, else the one that needs most."""
    refused = next((rank for rank in verdict.ranks if rank.fits is False), None)
    return refused or max(verdict.ranks, key=lambda rank: rank.needed_bytes or 0, default=None)


def _change(made: Emulation, attempt: Try) -> TriedChange:
    slower = _slower(made, attempt)
    cost = f", {slower_text(slower)}" if attempt.fits else ""
    return TriedChange(
        changes=list(attempt.changes),
        fits=attempt.fits,
        outcome=f"{_came_of(attempt)}{cost}",
        needed_bytes=attempt.needed_bytes,
        host_node_bytes=attempt.host_node_bytes,
        slower=slower,
    )


def _answer(made: Emulation) -> str:
    verdict, cluster = made.verdict, made.request.cluster
    where = f"{cluster.num_gpus} x {cluster.gpu.name}"
    failed, worst = verdict.failed, _worst(verdict)
    if made.interrupted:
        return f"Stopped: no verdict for {where}."
    if failed is not None:
        return f"The script failed on rank {failed.rank} (exit status {failed.exit_code}): {failed.message}"
    if worst is None or verdict.fits_devices is None:
        return f"The script never used the GPU: no memory allocated on {where}."
    if verdict.fits is False:
        return _fits_not(verdict, where)
    needed = worst.needed_bytes or 0
    free = worst.memory_bytes - needed
    return f"Fits on {where}: {_of(needed, worst.memory_bytes)} per GPU, {_gib(free)} to spare{_when(worst)}."


def _fits_not(verdict: Verdict, where: str) -> str:
    worst = next((rank for rank in verdict.ranks if rank.fits is False), None)
    if worst is None:
        needed, has = verdict.host_node_bytes or 0, verdict.host_memory_bytes or 0
        return f"Does not fit on {where}: host memory {_of(needed, has)}, {_gib(verdict.host_over_bytes)} too much."
    too = " Host memory is too small too, see below." if verdict.fits_host is False else ""
    return _fits_no_device(worst, where) + too


def _fits_no_device(worst: RankFit, where: str) -> str:
    if worst.needed_bytes is None:
        return f"Does not fit on {where}: a GPU has {_gib(worst.memory_bytes)}; total need unknown."
    over = worst.needed_bytes - worst.memory_bytes
    if over <= 0:
        return (
            f"Does not fit on {where}: {_of(worst.needed_bytes, worst.memory_bytes)} would be enough"
            f"{_when(worst)}, but fragmentation leaves no room for a request."
        )
    return (
        f"Does not fit on {where}: {_of(worst.needed_bytes, worst.memory_bytes)}, {_gib(over)} too much{_when(worst)}."
    )


def _when(rank: RankFit) -> str:
    """Whether start-up or steps need most, and what the other needs."""
    if not rank.needs or rank.needed_bytes is None:
        return ""
    if max(rank.needs.values()) < rank.needed_bytes:  # the ledger counts phases, the allocator all of the script
        return " (outside start-up and the tracked steps)"
    return f" ({when_needed(rank.needs)})"


def _rank(rank: RankFit) -> Iterator[str]:
    account = rank.account
    seen = f"tracked by {account.tracked}" if account.tracked else "no optimizer step seen"
    yield f"rank {account.rank}: {counted(account.num_steps, 'step')}, {seen}"
    refusal = account.refusal
    if refusal is not None and account.end is End.OUT_OF_DEVICE_MEMORY:
        yield (
            f"  out of memory: {_gib(refusal.bytes_asked)} requested in {refusal.during}, "
            f"{_gib(refusal.bytes_free)} free; allocated {_gib(refusal.standing.allocated_bytes)}:"
        )
        yield from _categories(refusal.standing.by_category, refusal.standing.allocated_bytes)
        yield f"  torch: {refusal.message}"
        yield from _standing(refusal)
    elif rank.peak is not None:
        where = phase_words(rank.peak.step.value, rank.peak.phase.value)
        yield f"  {_named_peak(rank)} {_gib(rank.peak.total_bytes)}, in {where}:"
        yield from _categories(rank.peak.categories, rank.peak.total_bytes)
    if not account.peak_bytes:
        return
    whole = account.end is not End.OUT_OF_DEVICE_MEMORY
    start = "" if account.start_peak_bytes is None else f"; start-up peak {_gib(account.start_peak_bytes)}"
    reserved = f" ({reserved_words(rank.reserved)})" if rank.reserved else ""
    yield (
        f"  peak allocated {_gib(account.peak_bytes)}{_in_step(account)}, "
        f"reserved {_gib(account.reserved_bytes)}{reserved}{start}"
    )
    if rank.needed_bytes is not None and whole:
        yield f"  outside torch (context, NCCL): {_gib(account.outside_bytes)}; NVML total {_gib(rank.nvml_bytes)}"
    if account.managed_bytes:
        yield f"  managed memory: {_gib(account.managed_bytes)}, on the GPU as far as it fits, the rest on the host"
    if rank.nvme_bytes:
        yield f"  NVMe: {_gib(rank.nvme_bytes)} in swap files"
    if refusal is not None and account.end is not End.OUT_OF_DEVICE_MEMORY:
        yield f"  note: {_gib(refusal.bytes_asked)} refused in {refusal.during}; the script went on"
    for note in account.notes:
        yield f"  note: {note}"


def _named_peak(rank: RankFit) -> str:
    """Words for the peak that has categories: of the tracked steps, where another step or start-up needed more."""
    if rank.account.compiles:
        return "uncompiled peak"
    if rank.peak is not None and rank.peak.total_bytes == rank.account.peak_bytes:
        return "peak"
    return "peak of the tracked first two steps" if rank.account.num_steps > 1 else "peak of the tracked first step"


def _in_step(account: Account) -> str:
    if account.peak_step is None:
        return ""
    return f" in step {account.peak_step}" if account.peak_step else " in start-up"


def _standing(refusal: Refusal) -> Iterator[str]:
    """The rest of the post-mortem; the categories stand above."""
    standing = refusal.standing.model_copy(update={"by_category": {}})
    for title, lines in standing_lines(standing, refusal.bytes_asked, refusal.bytes_free):
        yield f"  {title}:"
        yield from (f"    {line}" for line in lines)


def _categories(held: Mapping[Category, int], total: int) -> Iterator[str]:
    shown = {name: size for name, size in held.items() if size >= total * _SMALLEST_SHOWN and size}
    for name, size in sorted(shown.items(), key=lambda item: -item[1]):
        yield f"    {name.replace('_', ' '):24} {_gib(size):>12}  {size / total:6.1%}"
    rest = sum(held.values()) - sum(shown.values())
    if rest > 0:
        yield f"    {'other':24} {_gib(rest):>12}"


def _host(verdict: Verdict) -> Iterator[str]:
    needed, has = verdict.host_node_bytes, verdict.host_memory_bytes
    if needed is not None:
        per_rank = needed // verdict.ranks_per_node
        limit = "" if has is None else f" of {_gib(has)}"
        judged = "" if has is None else f": {_judged(verdict)}"
        yield (
            f"host memory: {_gib(per_rank)} of tensors per rank, {_gib(needed)}{limit} per node of "
            f"{counted(verdict.ranks_per_node, 'rank')}{judged} ({verdict.host_basis}), plus Python and its libraries"
        )
    elif verdict.failed is None:
        yield "host memory: unknown"
    if verdict.fits_host is False and verdict.host_standing is not None:
        for title, lines in host_standing_lines(verdict.host_standing):
            yield f"  {title}{':' if lines else ''}"
            yield from (f"    {line}" for line in lines)


def _judged(verdict: Verdict) -> str:
    over = verdict.host_over_bytes or 0
    return "fits" if over <= 0 else f"does not fit, {_gib(over)} too much"


def _tries(made: Emulation) -> Iterator[str]:
    verdict = made.verdict
    if verdict.not_tried is not None:
        yield ""
        yield f"No changes tried: {verdict.not_tried}."
    if verdict.tries:
        yield ""
        yield f"{CHANGES}:"
        yield from (f"  {change_line(_change(made, attempt))}" for attempt in verdict.tries)
    if Place.DEVICE in verdict.causes and sum(attempt.fits for attempt in verdict.tries) < ENOUGH:
        yield from _predictable(made)


def _predictable(made: Emulation) -> Iterator[str]:
    """How to see changes of what stands in the script: they can be predicted, and not played."""
    trial = made.trial
    if trial is not None and trial.own is not None and trial.zero_stage is not None and work_of(trial) is not None:
        asked = f"zerobench explain {shlex.quote(str(shortest(made.run.path)))} {shlex.quote(trial.own.name)} --changes"
        yield f"Changes inside the script, predicted: {asked}"


def _speed(made: Emulation) -> Iterator[str]:
    if not _has_speed(made):
        return
    row = _row(made)
    if row is None or row.expected is None:
        cluster = made.request.cluster
        why = NO_TRACE if row is None else why_no_script_time(row.trial, cluster.gpu, cluster.links)
        yield f"speed: no expected time: {why}"
        return
    what = "speed" if made.verdict.fits_devices else "speed, if it fitted"
    yield f"{what}: {_speed_words(made, row, row.expected)}"
    yield f"  assumed: {'; '.join(row.expected.assumptions)}"


def _has_speed(made: Emulation) -> bool:
    """True if steps of the script were played on the GPU."""
    return not made.interrupted and made.verdict.failed is None and made.verdict.fits_devices is not None


def _speed_words(made: Emulation, row: TrialFigures, expected: Interval) -> str:
    compiled = ", uncompiled" if any(rank.account.compiles for rank in made.verdict.ranks) else ""
    return f"{script_speed(row, expected)}, predicted by replay{compiled}"


def _row(made: Emulation) -> TrialFigures | None:
    """The script on such GPUs, with its expected step; None where no rank left a record."""
    played = made.played
    return (
        None
        if played is None or not played.ranks
        else trial_figures(played, played.spec.strategy, made.request.cluster)
    )


def _slower(made: Emulation, attempt: Try) -> float | None:
    """Increase in expected time under a change, as a share; None where either has no time."""
    return None if made.played is None else tried_slower(made.played, attempt, made.request.cluster)


def _came_of(attempt: Try) -> str:
    held = "" if attempt.host_node_bytes is None else f" and {_gib(attempt.host_node_bytes)} of a node's memory"
    if attempt.fits:
        return f"fits, {_gib(attempt.needed_bytes)} per GPU{held}"
    if attempt.fits_device:
        return f"fits the GPU but not host memory: {_gib(attempt.host_node_bytes)} of {_gib(attempt.host_memory_bytes)}"
    if attempt.account.end is End.OUT_OF_DEVICE_MEMORY:
        return "does not fit the GPU"
    return f"could not be emulated: {attempt.account.message}"


def _gib(num_bytes: int | None) -> str:
    if num_bytes is None:
        return "unknown"
    return f"{num_bytes / _GIB:.2f} GiB" if num_bytes >= _GIB / 100 else format_bytes(num_bytes)


def _of(needed: int, has: int) -> str:
    return f"needs {needed / _GIB:.2f} GiB of {has / _GIB:.2f} GiB"


def as_plain(made: Emulation, kept: Sequence[Trial] = ()) -> dict[str, Any]:
    """The same for programs: bytes, None for what is unknown."""
    verdict, cluster = made.verdict, made.request.cluster
    failed, row = verdict.failed, _row(made)
    expected = None if row is None else row.expected
    return {
        "fits": verdict.fits,
        "causes": verdict.causes,
        "evidence": "emulated",
        "values_computed": False,
        "gpu": cluster.gpu.name,
        "gpus": cluster.num_gpus,
        "gpus_per_node": cluster.gpus_per_node,
        "device_memory_bytes": cluster.gpu.capacity_bytes,
        "failed": None if failed is None else {"exit_code": failed.exit_code, "message": failed.message},
        "ranks": [_plain_rank(rank) for rank in verdict.ranks],
        "host": {
            "node_bytes": verdict.host_node_bytes,
            "memory_bytes": verdict.host_memory_bytes,
            "over_bytes": verdict.host_over_bytes,
            "basis": verdict.host_basis,
            "fits": verdict.fits_host,
        },
        "expected_step_s": expected and expected.step_s,
        "expected_step_low_s": expected and expected.low_s,
        "expected_step_high_s": expected and expected.high_s,
        "expected_mfu": row and row.expected_mfu,
        "tries": [
            {
                "changes": list(attempt.changes),
                "fits": attempt.fits,
                "needed_bytes": attempt.needed_bytes,
                "host_node_bytes": attempt.host_node_bytes,
                "expected_slower": _slower(made, attempt),
                "end": attempt.account.end,
            }
            for attempt in verdict.tries
        ],
        "not_tried": verdict.not_tried,
        "versions": releases(kept),
        "run": str(made.run.path),
    }


def _plain_rank(rank: RankFit) -> dict[str, Any]:
    account = rank.account
    return {
        "rank": account.rank,
        "fits": rank.fits,
        "peak_bytes": account.peak_bytes,
        "peak_step": account.peak_step,
        "reserved_bytes": account.reserved_bytes,
        "start_up_reserved_bytes": rank.reserved.get(StepKind.FIRST),
        "steady_reserved_bytes": rank.reserved.get(StepKind.STEADY),
        "needed_bytes": rank.needed_bytes,
        "start_up_needed_bytes": rank.needs.get(StepKind.FIRST),
        "steady_needed_bytes": rank.needs.get(StepKind.STEADY),
        "nvml_bytes": rank.nvml_bytes,
        "outside_torch_bytes": account.outside_bytes,
        "managed_bytes": account.managed_bytes,
        "start_peak_bytes": account.start_peak_bytes,
        "steps": account.num_steps,
        "tracked": account.tracked,
        "compiled": account.compiles,
        "end": account.end,
        "message": account.message,
        "categories": {} if rank.peak is None else rank.peak.categories,
        "refusal": None if account.refusal is None else _plain_refusal(account.refusal),
        "host_bytes": None if rank.host is None else rank.host.total_bytes,
        "nvme_bytes": rank.nvme_bytes,
        "notes": account.notes,
    }


def _plain_refusal(refusal: Refusal) -> dict[str, Any]:
    """What stood then beside what was asked, in one level."""
    fields = refusal.model_dump(mode="json")
    stood = fields.pop("standing")
    return {**fields, "held": stood.pop("by_category"), **stood}
