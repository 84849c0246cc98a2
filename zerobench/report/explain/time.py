"""Parts of a step's time, and why one trial is slower than another, as far as it was measured."""

from __future__ import annotations

from collections.abc import Iterator

from zerobench.common.units import format_bytes, format_seconds
from zerobench.common.vocabulary import StepKind
from zerobench.config.hardware.links import links_of
from zerobench.config.trial.trial import Evidence
from zerobench.estimate.clock.collectives import KindTraffic, traffic_by_kind, volume_psi
from zerobench.estimate.clock.place import gpu_of
from zerobench.estimate.time.bound import StepBound, step_bound
from zerobench.records.trials import Trial, case_of
from zerobench.report.explain.topic import Topic, says, signed
from zerobench.report.figures.speed import Speed, nvme_bytes_per_s, speed_of, step_seconds_by_rank
from zerobench.report.figures.stats import median_range, spread_over_ranks

_SLOW_RANK = 0.05


def time_topic(trial: Trial) -> Topic:
    """Dominant phase of a step, its traffic, and its distance from what the hardware allows."""
    speed = speed_of(trial)
    evidence = "" if trial.spec.evidence is Evidence.MEASURED else f" (evidence: {trial.spec.evidence.value})"
    timed = says(*_timed(trial, speed)) if speed else says(f"No step was timed{evidence}.")
    names = ("step_time_s_median", "forward_s", "backward_s", "step_s", "tokens_per_s", "void")
    figures = {"time": {name: getattr(speed, name) for name in names}} if speed else {}
    lines = [*timed, *says(*_traffic(trial), *_limits(trial, speed))]
    return Topic("Time", lines, figures, timed if speed else [])


def parts(speed: Speed) -> dict[str, float]:
    """Median seconds of each phase of a step; none where the engine does not tell them apart."""
    phases = {"forward": speed.forward_s, "backward": speed.backward_s, "optimizer": speed.step_s}
    return {name: seconds for name, seconds in phases.items() if seconds is not None}


def _timed(trial: Trial, speed: Speed) -> Iterator[str]:
    seconds = [step.step_s for step in speed.steps]
    yield (
        f"A step takes {format_seconds(speed.step_time_s_median)} (median of {len(seconds)}, from "
        f"{format_seconds(min(seconds))} to {format_seconds(max(seconds))}), {_shares(speed)}."
    )
    if speed.void:
        yield f"Its throughput is void: {speed.void}."
    spread = spread_over_ranks(step_seconds_by_rank(trial))
    if spread and spread.odd_rank is not None and abs(spread.odd_deviation or 0) > _SLOW_RANK:
        yield f"Rank {spread.odd_rank} is {100 * (spread.odd_deviation or 0):+.0f}% off the ranks' median step time."


def _shares(speed: Speed) -> str:
    """`most of it backward: forward 1 s (33%), ...`."""
    phases = parts(speed)
    if not phases:
        return "one graph, without separate phases"
    shares = ", ".join(
        f"{name} {format_seconds(value)} ({100 * value / speed.step_time_s_median:.0f}%)"
        for name, value in phases.items()
    )
    return f"mostly {max(phases.items(), key=lambda part: part[1])[0]}: {shares}"


def _traffic(trial: Trial) -> Iterator[str]:
    traffic_rows = traffic_of(trial)
    if traffic_rows:
        in_groups = len({traffic.group_size for traffic in traffic_rows}) > 1
        kinds = ", ".join(
            f"{row.kind} {format_bytes(row.message_bytes)} in "
            f"{'one call' if row.calls == 1 else f'{row.calls:,} calls'}{_among(row) if in_groups else ''}"
            for row in traffic_rows[:4]
        )
        psi = volume_psi(traffic_rows)
        volume = f", {psi:.2f} times the parameters by the ZeRO paper's count" if psi else ""
        yield f"Collectives of a steady step: {kinds}{volume}."
        case = case_of(trial)
        if case is not None and case.stage:
            overlap = "overlaps backward" if case.overlaps else "does not overlap backward"
            yield f"overlap_comm {str(case.overlaps).lower()}: gradient reduction {overlap}."
    read, written = nvme_bytes_per_s(trial)
    if read is not None and written is not None:
        yield f"NVMe: {format_bytes(read)}/s read and {format_bytes(written)}/s written over the whole step."


def _among(traffic: KindTraffic) -> str:
    nodes = {None: "", 1: " of one node"}.get(traffic.num_nodes, f" on {traffic.num_nodes} nodes")
    return f" among {traffic.group_size} ranks{nodes}"


def traffic_of(trial: Trial) -> list[KindTraffic]:
    """Collectives of a steady step on the first rank that counted any, without those of a few bytes."""
    ranks = (traffic_by_kind(rank, trial.spec.precision, StepKind.STEADY) for rank in trial.ranks)
    traffic_rows = next((traffic for traffic in ranks if traffic), [])
    return [traffic for traffic in traffic_rows if traffic.message_bytes >= traffic_rows[0].message_bytes // 1000]


def bound_of(trial: Trial) -> StepBound | None:
    """The least time of a step on the trial's GPU and its catalogued links; None where the GPU is not catalogued."""
    gpu = gpu_of(trial)
    return None if gpu is None else step_bound(trial, gpu, links_of(gpu))


def _limits(trial: Trial, speed: Speed | None) -> Iterator[str]:
    bound = bound_of(trial)
    if bound is None or bound.step_s is None:
        return
    times = "" if speed is None else f"; it takes {speed.step_time_s_median / bound.step_s:.2f} times that"
    least = format_seconds(bound.step_s)
    yield f"Lower bound by the hardware's peak rates: {least}, limited by {bound.limited_by}{times}."
    for sentence in bound.terms:
        if not sentence.endswith(": none"):
            yield sentence


def speed_difference(a: Trial, b: Trial, names: tuple[str, str], labels: tuple[str, str]) -> Topic:
    """Difference in speed from `a` to `b`, phase by phase; nothing is claimed within the spread of the steps.

    `names` are for sentences, `labels` for programs.
    """
    ours, theirs = speed_of(a), speed_of(b)
    if ours is None or theirs is None:
        return Topic("Time", says(*_untimed_difference(a, b, names)), brief=[])
    more = theirs.step_time_s_median - ours.step_time_s_median
    sentence = f"{names[1]} takes {format_seconds(theirs.step_time_s_median)} per step, {names[0]} "
    sentence += f"{format_seconds(ours.step_time_s_median)} ({100 * more / ours.step_time_s_median:+.1f}%)"
    phases = {name: value - parts(ours)[name] for name, value in parts(theirs).items() if name in parts(ours)}
    figures = {"step_s": {labels[0]: ours.step_time_s_median, labels[1]: theirs.step_time_s_median}}
    void = [f"{name}: {speed.void}" for name, speed in zip(names, (ours, theirs), strict=True) if speed.void]
    if void:
        sentence += f", but a throughput is void ({'; '.join(void)}): not compared."
        return Topic("Time", says(sentence), figures)
    ranges = [median_range([step.step_s for step in speed.steps]) for speed in (ours, theirs)]
    if ranges[0][1] >= ranges[1][0] and ranges[1][1] >= ranges[0][0]:
        spread = " and ".join(f"{format_seconds(low)} to {format_seconds(high)}" for low, high in reversed(ranges))
        sentence += f", but their timed steps overlap ({spread}): neither is measurably faster."
        return Topic("Time", says(sentence), figures)
    by_size = sorted(phases.items(), key=lambda part: -abs(part[1]))
    changes = ", ".join(f"{name} {signed(format_seconds(abs(value)), value)}" for name, value in by_size)
    by_phase = f": {changes}" if changes else "; phases unknown in one of them"
    lines = says(f"{sentence}{by_phase}.", *_traffic_difference(a, b, names))
    return Topic("Time", lines, figures, lines[:1])


def _untimed_difference(a: Trial, b: Trial, names: tuple[str, str]) -> Iterator[str]:
    bounds = bound_of(a), bound_of(b)
    yield "Measured speed: needs timed steps in both trials."
    if bounds[0] and bounds[1] and bounds[0].step_s and bounds[0].step_s == bounds[1].step_s:
        yield f"Lower bound of both steps by the hardware's peak rates: {format_seconds(bounds[0].step_s)}."
    elif bounds[0] and bounds[1] and bounds[0].step_s and bounds[1].step_s:
        yield (
            f"Lower bound by the hardware's peak rates: {names[0]} {format_seconds(bounds[0].step_s)}, limited by "
            f"{bounds[0].limited_by}; {names[1]} {format_seconds(bounds[1].step_s)}, limited by {bounds[1].limited_by}."
        )
    yield from _traffic_difference(a, b, names)


def _traffic_difference(a: Trial, b: Trial, names: tuple[str, str]) -> Iterator[str]:
    volumes = volume_psi(traffic_of(a)), volume_psi(traffic_of(b))
    if volumes[0] and volumes[1] and abs(volumes[1] - volumes[0]) > 0.01 * volumes[0]:
        yield (
            f"In a step {names[1]} moves {volumes[1]:.2f} times the parameters between ranks, {names[0]} "
            f"{volumes[0]:.2f} times, by the ZeRO paper's count (arXiv 1910.02054, section 7)."
        )
