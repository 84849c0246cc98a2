"""The tables of overhead.py: medians of what was measured, ratios pair by pair, and the goals beside them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from benchmarks import standin_driver
from benchmarks.launches import Launch
from zerobench.report.figures.stats import median_interval

GOAL_STEPS = 0.99
GOAL_PROCESS = 1.1
GOAL_SAMPLER_CPU = 0.98
GOAL_SAMPLER_GPU = 0.995

_NOTE = "Medians; the ratio is that of pairs. * too few pairs for an interval: their range"

PARTS_OF_A_PROCESS: tuple[tuple[str, Callable[[Launch], float]], ...] = (
    ("start", lambda launch: launch.start_s),
    ("build", lambda launch: launch.build_s),
    ("rest", lambda launch: launch.rest_s),
    ("beyond steps", lambda launch: launch.beyond_s),
    ("(tracked)", lambda launch: launch.tracked_s),
    ("(others)", lambda launch: launch.untimed_s + launch.timed_s),
)
RATES: tuple[tuple[str, Callable[[Launch], float]], ...] = (
    ("sustained", lambda launch: launch.steps_per_s),
    ("recorded", lambda launch: launch.recorded_steps_per_s),
)


def speed_table(launches: Sequence[Launch], *, pinned_malloc: bool = False) -> Table:
    """Part a: steps per second of both sides."""
    table = _table("a. steps per second: zerobench / bare DeepSpeed loop", "strategy", "rate", "bare", "zerobench")
    for strategy in _strategies(launches):
        for name, figure in RATES:
            bare, ours = _values(launches, strategy, "bare", figure), _values(launches, strategy, "zerobench", figure)
            medians = (f"{statistics.median(values):.3f}" for values in (bare, ours))
            table.add_row(strategy, name, *medians, *summary(paired_ratios(ours, bare)), f">= {GOAL_STEPS}")
        table.add_section()
    table.caption = (
        "sustained: all between the first timed step's start and the last one's end; recorded: the steps by "
        "themselves, as zerobench's records have them. The bare loop's malloc: "
        f"{'as zerobench sets it' if pinned_malloc else 'as it comes'}. {_NOTE}"
    )
    return table


def process_table(launches: Sequence[Launch]) -> Table:
    """Part b: where the wall-clock time of the whole process went, medians of each part."""
    table = _table("b. seconds of the whole process: zerobench / bare loop", "strategy", "part", "bare", "zerobench")
    for strategy in _strategies(launches):
        for name, figure in PARTS_OF_A_PROCESS:
            bare, ours = _values(launches, strategy, "bare", figure), _values(launches, strategy, "zerobench", figure)
            medians = (f"{statistics.median(values):.2f}" for values in (bare, ours))
            counts = name.startswith("beyond")
            ratio = (*summary(paired_ratios(ours, bare)), f"< {GOAL_PROCESS}") if counts else ("", "", "")
            table.add_row(strategy, name, *medians, *ratio, style="bold" if counts else "")
        table.add_section()
    table.caption = (
        "start: launcher, interpreter, imports, process group. build: model and engine. rest: pauses between kinds of "
        "step, records, exit. beyond steps: the sum of these. In brackets, not counted: the steps; tracked ones, "
        f"for memory, are taken by zerobench alone. {_NOTE}"
    )
    return table


def sampler_table(blocks: dict[str, Any], *, on_gpu: bool) -> Table:
    """Part c: seconds of the blocks with the sampler off over those with it on, which is the ratio of the rates."""
    ratios = paired_ratios(blocks["off_s"], blocks["on_s"])
    table = _table("c. steps per second: NVML sampler on / off", "pairs", "block off", "block on")
    medians = (f"{statistics.median(blocks[kind]):.3f} s" for kind in ("off_s", "on_s"))
    goal = GOAL_SAMPLER_GPU if on_gpu else GOAL_SAMPLER_CPU
    table.add_row(str(len(ratios)), *medians, *summary(ratios), f">= {goal}")
    table.caption = _NOTE
    return table


def ledger_table(blocks: dict[str, Any]) -> Table:
    """Part d: seconds of the blocks under the ledger over those without. No trial is timed under it: it has no goal."""
    ratios = paired_ratios(blocks["on_s"], blocks["off_s"])
    table = _table("d. seconds of a step: memory ledger on / off", "pairs", "step off", "step on")
    medians = (f"{statistics.median(blocks[kind]) / blocks['block_steps']:.3f} s" for kind in ("off_s", "on_s"))
    table.add_row(str(len(ratios)), *medians, *summary(ratios), "none")
    table.caption = f"A trial's memory steps are taken under it, its timed steps never. {_NOTE}"
    return table


def watched_table(runs: Sequence[dict[str, Any]], num_steps: int) -> Table:
    """Part e: the rate of runs that a terminal shows over those in a pipe."""
    live, piped = (
        [run["timed_s"] for run in sorted(runs, key=lambda run: run["pair"]) if run["view"] == view]
        for view in ("live", "piped")
    )
    ratios = paired_ratios(piped, live)
    table = _table("e. steps per second: live view / output in a pipe", "pairs", "step piped", "step live")
    medians = (f"{statistics.median(seconds) / num_steps:.3f} s" for seconds in (piped, live))
    table.add_row(str(len(ratios)), *medians, *summary(ratios), f">= {GOAL_STEPS}")
    table.caption = f"Runner, live view and ranks share this machine's cores. {_NOTE}"
    return table


def sampler_lines(blocks: dict[str, Any]) -> str:
    """What shows that the sampler did sample, and at what price: samples, its largest gap, its CPU time."""
    summaries = blocks["summaries"]
    gaps = [sampled["largest_gap_s"] for sampled in summaries if sampled["largest_gap_s"] is not None]
    samples = sum(sampled["num_samples"] for sampled in summaries)
    devices = max(len(sampled["devices"]) for sampled in summaries)
    faults = sorted({fault for sampled in summaries for fault in sampled["faults"]})
    interval_s = summaries[0]["interval_s"]
    every = f"every {interval_s * 1000:g} ms" if interval_s else "never"
    gap = f"{max(gaps) * 1000:.0f} ms" if gaps else "unknown"
    driver = f"a stand-in driver ({standin_driver.LATENCY_US} us a call)" if blocks["standin"] else "the NVIDIA driver"
    line = f"sampler: {samples} samples of {devices} devices of {driver}, {every}; largest gap {gap}; {core(blocks)}"
    return "\n".join([line, *(f"sampler: {fault}" for fault in faults)])


def core(blocks: dict[str, Any]) -> str:
    """What the sampler took of one core, its driver's calls included: the median over the blocks."""
    return f"{statistics.median(blocks['cores']):.1%} of one core"


def paired_ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """One ratio for each pair."""
    return [ours / theirs for ours, theirs in zip(numerators, denominators, strict=True)]


def summary(ratios: Sequence[float]) -> tuple[str, str]:
    """The median, and the interval that holds the true one; their range where too few pairs were taken for that."""
    interval = median_interval(ratios)
    low, high = interval or (min(ratios), max(ratios))
    return f"{statistics.median(ratios):.3f}", f"{low:.3f} to {high:.3f}{'' if interval else '*'}"


def _values(launches: Sequence[Launch], strategy: str, side: str, figure: Callable[[Launch], float]) -> list[float]:
    """The figure of each launch of one side, by pair."""
    chosen = [launch for launch in launches if (launch.strategy, launch.side) == (strategy, side)]
    return [figure(launch) for launch in sorted(chosen, key=lambda launch: launch.pair)]


def _strategies(launches: Sequence[Launch]) -> list[str]:
    return sorted({launch.strategy for launch in launches})


def _table(title: str, *names: str) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left")
    for name in names:
        table.add_column(name, justify="left" if name in {"strategy", "rate", "part"} else "right")
    for name in ("ratio", "95 % interval", "goal"):
        table.add_column(name, justify="right", no_wrap=True)
    return table
