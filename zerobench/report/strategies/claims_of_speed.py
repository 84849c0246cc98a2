"""Claims about speed and waiting."""

from zerobench.formulas.pipeline import bubble_fraction
from zerobench.report.strategies.claim import NEAR, Claim, ClaimRows, judged_speed, ratio, unjudged
from zerobench.report.strategies.rows import ComparedSide
from zerobench.spec.strategy import STRATEGIES
from zerobench.spec.trial import Compression, Consistency
from zerobench.units import format_seconds

_SCALES_WELL = 0.9
"""Efficiency from which on n ranks pass for n times as fast."""
_NOT_BELIEVED = 1.5
"""Efficiency beyond which caches explain nothing: the single process was disturbed."""


def scales(known: ClaimRows) -> Claim:
    text = "n ranks train n times as fast as one"
    scaled = [row for row in known.workers if row.spec.world_size > 1 and row.efficiency is not None]
    if not scaled:
        return unjudged(text, "needs timed trials of several ranks and of single")
    best = max(scaled, key=lambda row: row.efficiency or 0.0)
    worst = min(scaled, key=lambda row: row.efficiency or 0.0)
    if (best.efficiency or 0.0) > _NOT_BELIEVED:
        return unjudged(text, f"needs an undisturbed single process: {_speed(best)}")
    sentence = f"best: {_speed(best)}; worst: {_speed(worst)}"
    return judged_speed(text, (worst.efficiency or 0.0) >= _SCALES_WELL, sentence, scaled)


def _speed(row: ComparedSide) -> str:
    return (
        f"{row.label}, {row.speed_up or 0:.2f} x the speed on {row.spec.world_size} ranks "
        f"({100 * (row.efficiency or 0):.0f}% efficiency)"
    )


def asynchronous(known: ClaimRows) -> Claim:
    text = "An asynchronous server is faster, with staler gradients"
    servers = [row for row in known.rows if row.spec.strategy == "parameter-server" and not row.figures.is_server]
    timed = [row for row in servers if row.figures.step_s is not None and row.figures.staleness is not None]
    pairs = [
        (sync, other)
        for other in timed
        for sync in timed
        if other.spec.consistency is Consistency.ASYNC
        and sync.spec.consistency is Consistency.SYNC
        and sync.spec.world_size == other.spec.world_size
    ]
    if not pairs:
        return unjudged(text, "needs a synchronous and an asynchronous server with equally many workers")
    sync, other = max(pairs, key=lambda pair: pair[0].spec.world_size)
    gain = (sync.figures.step_s or 0.0) - (other.figures.step_s or 0.0)
    noise = (sync.figures.spread_s or 0.0) + (other.figures.spread_s or 0.0)
    is_staler = (other.figures.staleness or 0.0) > (sync.figures.staleness or 0.0)
    away = "" if other.parity is None else f", loss difference to the single process {other.parity.difference:.2g}"
    sentence = (
        f"step time {format_seconds(sync.figures.step_s or 0)} synchronous, "
        f"{format_seconds(other.figures.step_s or 0)} asynchronous; mean staleness "
        f"{other.figures.staleness or 0:.2f} updates{away}"
    )
    return judged_speed(text, gain > noise and is_staler, sentence, (sync, other))


def compression(known: ClaimRows) -> Claim:
    text = "Gradient compression makes a step faster"
    hooks = [row for row in known.workers if row.spec.compression is not Compression.NONE and row.figures.step_s]
    pairs = [(row, ddp) for row in hooks if (ddp := known.like(row, "ddp")) is not None and ddp.figures.step_s]
    if not pairs:
        return unjudged(text, "needs ddp with and without compression")
    sentence = "; ".join(_compressed(row, ddp) for row, ddp in pairs)
    is_faster = all((row.figures.step_s or 0) < (ddp.figures.step_s or 0) for row, ddp in pairs)
    return judged_speed(text, is_faster, sentence, [row for row, _ in pairs])


def _compressed(row: ComparedSide, ddp: ComparedSide) -> str:
    sent = ratio(row.figures.sent_bytes, ddp.figures.sent_bytes)
    away = "" if row.parity is None else f", loss difference {row.parity.difference:.2g}"
    moved = "" if sent is None else f"sends {100 * sent:.0f}% of the bytes, "
    step = ratio(row.figures.step_s, ddp.figures.step_s) or 0.0
    return f"{row.spec.compression} {moved}takes {100 * step:.0f}% of the time{away}"


def overlap(known: ClaimRows) -> Claim:
    text = "DDP hides its communication behind the backward pass"
    ddp = known.row_of("ddp")
    if ddp is None or not ddp.figures.in_flight_fraction or ddp.figures.exposed_fraction is None:
        return unjudged(text, "needs a profiled step of ddp on several ranks (steps: {communication: 1})")
    hidden = 1 - ddp.figures.exposed_fraction / ddp.figures.in_flight_fraction
    sentence = (
        f"{ddp.label} communicates during {100 * ddp.figures.in_flight_fraction:.0f}% of a step, "
        f"{100 * hidden:.0f}% of it overlapped with compute"
    )
    return judged_speed(text, hidden > 1 / 2, sentence, [ddp])


def synchronisation(known: ClaimRows) -> Claim:
    text = "Model-parallel ranks wait for each other more than data-parallel ranks"
    ddp = known.row_of("ddp")
    divided = [row for row in known.of("tensor", "pipeline", "rpc-pipeline") if row.figures.sync_fraction is not None]
    if ddp is None or ddp.figures.sync_fraction is None or not divided:
        return unjudged(text, "needs profiled steps of ddp and of a model-parallel strategy")
    fractions = ", ".join(f"{row.label} {100 * (row.figures.sync_fraction or 0):.0f}%" for row in [ddp, *divided])
    holds = min(row.figures.sync_fraction or 0.0 for row in divided) > ddp.figures.sync_fraction
    return judged_speed(text, holds, f"exposed communication and waiting: {fractions}", [ddp, *divided])


def bubble(known: ClaimRows) -> Claim:
    """A stage's waiting is that which the strategy itself timed, in steps without a profiler."""
    text = "Pipeline bubble: (p-1)/(m+p-1) of a step"
    waiting = [row for row in known.workers if row.figures.wait_fraction is not None]
    stages = [row for row in waiting if STRATEGIES[row.spec.strategy].divides_layers]
    if not stages:
        return unjudged(text, "needs a timed pipeline")
    shares = [(row.label, row.figures.wait_fraction or 0.0, bubble_fraction(row.spec)) for row in stages]
    sentence = "; ".join(
        f"{label} idle for {100 * idle:.0f}%, by formula {100 * ideal:.0f}%" for label, idle, ideal in shares
    )
    return judged_speed(text, all(abs(idle - ideal) <= NEAR for _, idle, ideal in shares), sentence, stages)
