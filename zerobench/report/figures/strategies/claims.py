"""Claims of the notes on distributed training, each with the run's own numbers and whether they bear it out.

A claim that the run cannot judge says what is missing. Nothing here is known beforehand but the claims themselves and
how near a number must come.
"""

from collections.abc import Callable, Sequence
from functools import partial

from zerobench.common.units import format_bytes, format_seconds
from zerobench.config.derived.pipeline_steps import bubble_fraction
from zerobench.config.derived.roles import num_workers
from zerobench.config.derived.strategy import STRATEGIES
from zerobench.config.trial.trial import Compression, Consistency
from zerobench.report.figures.paper import PaperTerms, paper_terms
from zerobench.report.figures.strategies.claim import (
    NEAR,
    Claim,
    ClaimRows,
    Rows,
    agrees_with_form,
    is_near,
    judged,
    judged_speed,
    ratio,
    unjudged,
)
from zerobench.report.figures.strategies.rows import ComparedSide


def claims(rows: Rows) -> list[Claim]:
    """Every claim, in the order in which a course would make them."""
    known = ClaimRows(rows)
    return [judge(known) for judge in _CLAIMS]


def exact(known: ClaimRows) -> Claim:
    text = "Exact strategies compute what one process computes"
    held = [row for row in known.rows if row.parity is not None and row.parity.is_judged and not row.figures.is_server]
    if not held:
        return unjudged(text, "no losses to compare")
    difference, far = max(((row.parity.difference, row) for row in held if row.parity), key=lambda pair: pair[0])
    agreeing = sum(row.is_believed for row in held)
    sentence = f"{agreeing} of {len(held)} agree; largest loss difference {difference:.1g} ({far.label})"
    if wrong := [row for row in held if row.parity is not None and not row.parity.norms_agree]:
        factor = 1 + (wrong[0].parity.norm_difference or 0.0 if wrong[0].parity else 0.0)
        sentence += f"; {wrong[0].label} has gradients that differ by a factor of {factor:.2g}"
    return judged(text, agreeing == len(held), sentence)


def all_reduce(known: ClaimRows) -> Claim:
    text = "An all-reduce of gradients sends 2 (n-1)/n of their size per rank"
    rows = known.of("ddp", "zero0")
    counted = [row for row in rows if row.figures.sent_bytes is not None and row.figures.formula_sent_bytes]
    if not counted:
        return unjudged(text, "needs a trial with counted bytes")
    sentence = "; ".join(
        f"{row.label} sends {format_bytes(round(row.figures.sent_bytes or 0))} per rank and step, "
        f"{format_bytes(round(row.figures.formula_sent_bytes or 0))} by the closed form"
        for row in counted
    )
    return judged(text, all(agrees_with_form(row.figures) for row in counted), sentence)


def server_moves(known: ClaimRows) -> Claim:
    text = "A parameter server moves 2 x the weights per worker and step, all through the server"
    sides = [row for row in known.rows if row.spec.strategy == "parameter-server" and row.is_believed]
    counted = [row for row in sides if row.figures.sent_bytes is not None and row.figures.received_bytes is not None]
    if not counted:
        return unjudged(text, "needs a parameter-server trial with counted bytes")
    most = max(num_workers(row.spec) for row in counted)
    shown = {row.figures.role: row for row in reversed(counted) if num_workers(row.spec) == most}
    sentence = "; ".join(
        f"{'the server' if row.figures.is_server else 'a worker'} of {row.label} sends "
        f"{format_bytes(round(row.figures.sent_bytes or 0))} and gets "
        f"{format_bytes(round(row.figures.received_bytes or 0))} with {most} workers"
        for row in shown.values()
    )
    return judged(text, all(agrees_with_form(row.figures) for row in counted), sentence)


def _against_ddp(text: str, strategies: Sequence[str], holds: Callable[[float], bool], known: ClaimRows) -> Claim:
    """Bytes sent over those of ddp on as many ranks."""
    beside = [(row, known.ddp_like(row)) for row in known.of(*strategies)]
    sent = [
        (row, ratio(row.figures.sent_bytes, ddp.figures.sent_bytes))
        for row, ddp in beside
        if ddp is not None and ddp.spec.world_size == row.spec.world_size
    ]
    ratios = [(row, times) for row, times in sent if times is not None]
    if not ratios:
        return unjudged(text, f"needs ddp and {' or '.join(strategies)} on equally many ranks, with counted bytes")
    sentence = "; ".join(
        f"{row.label} sends {format_bytes(round(row.figures.sent_bytes or 0))}, {times:.2f} x ddp"
        for row, times in ratios
    )
    return judged(text, all(holds(times) for _, times in ratios), sentence)


_LESS = "ZeRO-1 and ZeRO-2 communicate no more than data parallelism (2 Psi)"
_MORE = "ZeRO-3 communicates 1.5 x as much as data parallelism (3 Psi)"
_FSDP = "FSDP communicates at most 1.5 x as much as data parallelism"
"""Less where what lies outside the blocks stays gathered after forward, as FSDP2 has it by default."""


def data_parallelism_saves_none(known: ClaimRows) -> Claim:
    text = "Data parallelism saves no memory of model states"
    ddp = known.row_of("ddp")
    single = next((row for row in known.workers if row.is_reference), None)
    if ddp is None or single is None or not ddp.figures.states_bytes or not single.figures.states_bytes:
        return unjudged(text, "needs trials of ddp on several ranks and of single, with memory")
    share = ddp.figures.states_bytes / single.figures.states_bytes
    sentence = (
        f"{ddp.label} holds {format_bytes(ddp.figures.states_bytes)} per rank, the single process "
        f"{format_bytes(single.figures.states_bytes)}"
    )
    return judged(text, share >= 1 - NEAR, sentence)


def zero_divides(known: ClaimRows) -> Claim:
    """Each state by itself, since one that is larger and one that is smaller may hide each other in the sum."""
    text = "ZeRO stages partition optimizer states, then gradients, then parameters"
    stages = [row for row in known.of("zero1", "zero2", "zero3", "fsdp") if row.figures.states is not None]
    pairs = [(row, paper) for row in stages if (paper := paper_terms(row.spec, row.figures.num_params)) is not None]
    if not pairs:
        return unjudged(text, "needs a trial of zero1 to zero3 or fsdp on several ranks, with memory")
    departing = [_departing(row, paper) for row, paper in pairs]
    sentence = "; ".join(
        f"{row.label} holds {format_bytes(row.figures.states_bytes or 0)} per rank where the paper says "
        f"{format_bytes(round(paper.total_bytes))}{' (' + ', '.join(parts) + ')' if parts else ''}"
        for (row, paper), parts in zip(pairs, departing, strict=True)
    )
    return judged(text, not any(departing), sentence)


def _departing(row: ComparedSide, paper: PaperTerms) -> list[str]:
    """The states that are not what the paper says, with both figures."""
    sizes = [(words, getattr(row.figures.states, name), getattr(paper, name)) for name, words in _STATES.items()]
    return [
        f"{words} {format_bytes(held)} instead of {format_bytes(round(claimed))}"
        for words, held, claimed in sizes
        if held != claimed and not is_near(held, claimed)
    ]


_STATES = {
    "parameters_bytes": "parameters",
    "gradients_bytes": "gradients at the end of backward",
    "optimizer_bytes": "optimizer states",
}


def server_holds(known: ClaimRows) -> Claim:
    text = "A parameter server frees its workers of optimizer states, but saves none itself"
    sides = [row for row in known.rows if row.spec.strategy == "parameter-server" and row.saved_fraction is not None]
    server = next((row for row in sides if row.figures.is_server), None)
    worker = next((row for row in sides if not row.figures.is_server), None)
    if server is None or worker is None:
        return unjudged(text, "needs trials of parameter-server and ddp, with memory")
    sentence = "; ".join(
        f"{who} holds {format_bytes(row.figures.states_bytes or 0)}, {_saving(row)}"
        for who, row in (("a worker", worker), ("the server", server))
    )
    optimizer = worker.figures.states.optimizer_bytes if worker.figures.states else 0
    return judged(text, optimizer == 0 and abs(server.saved_fraction or 0) <= NEAR, sentence)


def _saving(row: ComparedSide) -> str:
    saved = row.saved_fraction or 0.0
    if abs(saved) < 0.005:
        return "as much as a rank of ddp"
    return f"{abs(100 * saved):.0f}% {'less' if saved > 0 else 'more'} than a rank of ddp"


_SCALES_WELL = 0.9
"""Efficiency from which on n ranks pass for n times as fast."""
_NOT_BELIEVED = 1.5
"""Efficiency beyond which caches explain nothing: the single process was disturbed."""


def scales(known: ClaimRows) -> Claim:
    text = "n ranks train n times as fast as one"
    scaled = [row for row in known.workers if row.spec.world_size > 1 and row.efficiency is not None]
    if not scaled:
        return unjudged(text, "needs timed trials of several ranks and of single")
    best, worst = (end(scaled, key=lambda row: row.efficiency or 0.0) for end in (max, min))
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
    pairs = [(row, ddp) for row in hooks if (ddp := known.ddp_like(row)) is not None and ddp.figures.step_s]
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


_CLAIMS: tuple[Callable[[ClaimRows], Claim], ...] = (
    exact,
    scales,
    data_parallelism_saves_none,
    zero_divides,
    all_reduce,
    partial(_against_ddp, _LESS, ("zero1", "zero2"), lambda ratio: ratio <= 1 + NEAR),
    partial(_against_ddp, _MORE, ("zero3",), lambda ratio: abs(ratio / 1.5 - 1) <= NEAR),
    partial(_against_ddp, _FSDP, ("fsdp",), lambda ratio: ratio <= 1.5 * (1 + NEAR)),
    server_moves,
    server_holds,
    asynchronous,
    compression,
    overlap,
    synchronisation,
    bubble,
)
