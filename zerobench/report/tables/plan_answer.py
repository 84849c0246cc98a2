"""A plan's answer: what to take, what it needs, how fast it is expected to be; then one table of all that was tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from zerobench.common.units import counted, format_bytes, format_count, format_seconds
from zerobench.config.derived.cluster import Cluster
from zerobench.config.derived.training import Training
from zerobench.estimate.clock.step import Interval
from zerobench.estimate.time.expected import why_no_time
from zerobench.report.explain.decided import Decided
from zerobench.report.explain.decision import runner_up_words
from zerobench.report.figures.fit import ROOM
from zerobench.report.figures.training_cost import TrainingCost, takes
from zerobench.report.figures.trial import TrialFigures, evidence_words
from zerobench.report.tables.model import Column, Line, Table, unit_column
from zerobench.report.tables.part import Part
from zerobench.report.words.column_units import MISSING, Unit, byte_unit, plain, show_percent, show_whole, time_unit


@dataclass(frozen=True)
class PlanAnswer:
    """The answer in a few lines."""

    title: str
    first: Sequence[str] = ()
    """Its need and speed; the next commands follow right below."""
    rest: Sequence[str] = ()

    def with_next(self, what_to_do: Sequence[str], last: Sequence[str]) -> Part:
        """All of it, `what_to_do` in its place and `last` at the end."""
        return Part(self.title, text=[*self.first, *what_to_do, *self.rest, *last])


def answer(made: Decided, cluster: Cluster, others: Sequence[str], training: Training | None = None) -> PlanAnswer:
    """The answer; `others` says of trials without figures, `training` what is to be trained."""
    rows, choice, relief = made.rows, made.choice, made.relief
    if choice is None:
        found = "nothing fits with room" if any(row.fits for row in rows) else "nothing fits"
        tried = [f"Also tried: {relief.tried}."] if relief else _not_tried(rows)
        return PlanAnswer(f"{_heading(rows, cluster)}: {found}", [_nearest(rows)], [*tried, *others])
    best, rival = choice.best, runner_up_words(choice)
    untried = _not_tried(rows) if best.offloads() else ()
    why = [f"Why: {choice.reason}.", *([f"Runner-up: {rival}."] if rival else [])]
    tried = [f"Tried: {relief.tried}."] if relief else []
    rest = [*_batch(rows, best), *_training(best, cluster, training), *why, *tried, *untried, *others]
    title = f"{_heading(rows, cluster)}: {f'{relief.words}: ' if relief else ''}choose {_taken(best)}"
    return PlanAnswer(title, [_memory(best), _speed(best, cluster)], rest)


def one_answer(row: TrialFigures, cluster: Cluster) -> PlanAnswer:
    """Answer for a single configuration: whether it fits, what it needs, how fast it is."""
    verdict = "fits" if row.fits else "does not fit"
    title = f"{_heading([row], cluster)}: {_taken(row)} {verdict}"
    return PlanAnswer(title, [_memory(row), _speed(row, cluster)])


def _taken(best: TrialFigures) -> str:
    """Its name, and its strategy where that is in no name because all have it."""
    strategy, label = best.spec.strategy, plain(best.label)
    return label if strategy in label.split() else f"{strategy} {label}"


def _heading(rows: Sequence[TrialFigures], cluster: Cluster) -> str:
    models = {row.spec.model.name for row in rows}
    sizes = sorted({row.spec.world_size for row in rows})
    what = plain(*models) if len(models) == 1 else f"{len(models)} models"
    return f"{what} on {' to '.join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))} x {cluster.gpu.name}"


def _batch(rows: Sequence[TrialFigures], best: TrialFigures) -> Iterator[str]:
    """Factors of the global batch, where rows differ in it."""
    spec = best.spec
    if len({row.spec.micro_batch_size for row in rows}) > 1:
        yield (
            f"Batch: {spec.global_batch_size:,} sequences = micro batch {spec.micro_batch_size} x accumulation "
            f"{spec.gradient_accumulation_steps} x {counted(spec.world_size, 'GPU')}."
        )


def _not_tried(rows: Sequence[TrialFigures]) -> Iterator[str]:
    """Changes that may save an offload, or fit at all, and are no part of the plan."""
    if not any(row.spec.activation_checkpointing for row in rows):
        yield "Not tried: activation checkpointing (less memory, slower)."


def _memory(best: TrialFigures) -> str:
    host, when = best.host, best.need_moments
    device = (
        f"Memory: {_share_words(best.device.needed_bytes, best.device.capacity_bytes, 'per GPU')}{when and f' {when}'}"
    )
    if not best.offloads() and (host.room is None or host.room > _HARDLY):
        return f"{device}."
    capacity, unknown = (None, "; give --host-memory to check it") if host.room is None else (host.capacity_bytes, "")
    return f"{device}; {_share_words(host.needed_bytes, capacity, 'of host memory per node')}{unknown}."


def _share_words(needed: int | None, capacity: int | None, what: str) -> str:
    if needed is None or not capacity:
        return f"{format_bytes(needed)} {what}"
    free = f"{show_percent(1 - needed / capacity, 0)}% free"
    over = f"{format_bytes(needed - capacity)} too much"
    return f"{format_bytes(needed)} of {format_bytes(capacity)} {what} ({free if needed <= capacity else over})"


def _speed(best: TrialFigures, cluster: Cluster) -> str:
    """Expected tokens/s with their interval, or, where no time is known, at most."""
    if best.expected is not None:
        return f"Speed: {expected_speed(best, best.expected)}."
    most = None if best.bound is None else best.bound.tokens_per_s
    known = "unknown" if most is None else f"{format_count(most)} tokens/s at most"
    return f"Speed: {known}; no expected time: {why_no_time(best.trial, cluster.gpu, cluster.links)}."


def expected_speed(row: TrialFigures, expected: Interval) -> str:
    """Tokens/s of a row with their interval, its step's time and the MFU."""
    tokens = row.spec.global_batch_tokens
    mfu = "" if row.expected_mfu is None else f", {show_percent(row.expected_mfu, 0)}% MFU"
    low, middle, high = (format_count(tokens / step) for step in (expected.high_s, expected.step_s, expected.low_s))
    return f"{middle} tokens/s expected ({low} to {high}), {format_seconds(expected.step_s)} per step{mfu}"


def script_speed(row: TrialFigures, expected: Interval) -> str:
    """The step of a user's script with its interval, and tokens/s where the script says how many a step has."""
    if all(map(row.trial.spec.knows, ("micro_batch_size", "gradient_accumulation_steps", "sequence_length"))):
        return expected_speed(row, expected)
    low, middle, high = map(format_seconds, (expected.low_s, expected.step_s, expected.high_s))
    return f"{middle} per step expected ({low} to {high})"


_HARDLY = 0.95
"""Free share of a node's memory from which the need of a trial that offloads nothing is not reported."""


def _training(best: TrialFigures, cluster: Cluster, training: Training | None) -> Iterator[str]:
    """Cost of the training: days, GPU-hours, money and energy."""
    interval = None if training is None else takes(best, cluster.gpu, training)
    if training is None or interval is None:
        return
    low, middle, high = interval
    days = f"{middle.days:,.3g} days expected ({low.days:,.3g} to {high.days:,.3g})"
    hours = f"{format_count(middle.gpu_hours)} GPU-hours"
    yield f"{format_count(training.tokens)} tokens: {days}, {hours}."
    yield from _cost(training, low, middle, high)


def _cost(training: Training, low: TrainingCost, middle: TrainingCost, high: TrainingCost) -> Iterator[str]:
    lines = []
    if middle.cost is not None and low.cost is not None and high.cost is not None:
        ends = f"{format_count(low.cost)} to {format_count(high.cost)}"
        lines.append(f"Cost: {format_count(middle.cost)} ({ends}) at {training.price_per_gpu_hour:,.15g} per GPU-hour.")
    if middle.most_energy_kwh is not None:
        lines.append(f"Energy: at most {middle.most_energy_kwh / 1000:,.3g} MWh, the GPUs' rated power.")
    if lines:
        yield " ".join(lines)


def _nearest(rows: Sequence[TrialFigures]) -> str:
    nearest = max(rows, key=lambda row: row.room)
    needs = [
        f"{format_bytes(space.needed_bytes)} of {place} memory{when and f' {when}'}, "
        f"{format_bytes(space.capacity_bytes)} available"
        for place, space, when in (
            ("device", nearest.device, nearest.need_moments),
            ("host", nearest.host, ""),
        )
        if not space.has_room
    ]
    if len(rows) > 1:
        which = f"{plain(nearest.label)}, the closest,"
        return f"None of {len(rows)} fits with {ROOM:.0%} room. {which} needs {' and '.join(needs)}."
    found = f"It has less than {ROOM:.0%} room" if nearest.fits else "It does not fit"
    return f"{found}: it needs {' and '.join(needs)}."


def plan_table(rows: Sequence[TrialFigures]) -> Table[TrialFigures]:
    """All that was tried: what it needs, whether it fits, how long a step is expected to take."""
    return Table(
        f"Predicted ({evidence_words(rows)}): peak memory and step time",
        "GPU: including allocator slack, CUDA context and NCCL. tight: under 5% room. low, high: 80% interval.",
        list(_columns(rows)),
        [Line(row.name, row) for row in rows],
        narrow_caption="GPU, host: peaks. tight: under 5% room. low, high: 80% interval.",
    )


def shortened(table: Table[TrialFigures], most: int) -> Table[TrialFigures]:
    """`table` with the `most` lines that fit and are expected to be fastest, in its order; the rest are counted."""
    if len(table.lines) <= most:
        return table
    telling = sorted(table.lines, key=lambda line: _interest(line.figures), reverse=True)[: max(1, most)]
    kept = {id(line) for line in telling}
    rest = f"{len(table.lines) - len(telling)} more with --details"
    return replace(table, lines=[line for line in table.lines if id(line) in kept], below=[*table.below, rest])


def _interest(row: TrialFigures) -> tuple[bool, bool, float]:
    return row.has_room, row.fits, row.expected_tokens_per_s or (-row.least_step_s if row.least_step_s else 0.0)


def _columns(rows: Sequence[TrialFigures]) -> Iterator[Column[TrialFigures]]:
    memory = byte_unit([row.device.needed_bytes for row in rows] + [row.host.needed_bytes for row in rows])
    seconds = time_unit([row.expected.step_s if row.expected else row.least_step_s for row in rows])
    yield Column("GPU", lambda row: memory.show(row.device.needed_bytes), memory.name, narrow=f"GPU {memory.name}")
    yield Column("host", lambda row: memory.show(row.host.needed_bytes), memory.name, narrow="host")
    yield Column("fits", lambda row: row.fit.verdict or MISSING, is_text=True, narrow="fits")
    if any(row.expected for row in rows):
        yield _time("step", "step_s", seconds, narrow=f"step {seconds.name}")
        yield _time("low", "low_s", seconds)
        yield _time("high", "high_s", seconds)
        yield Column("tokens/s", lambda row: show_whole(row.expected_tokens_per_s), narrow="tokens/s")
    else:
        yield unit_column("step at least", seconds, lambda row: row.least_step_s, narrow=f"least {seconds.name}")


def _time(name: str, field: str, unit: Unit, narrow: str | None = None) -> Column[TrialFigures]:
    return unit_column(name, unit, lambda row: getattr(row.expected, field, None), narrow=narrow or name)
