"""The tables of overhead.py: medians of what was measured, ratios pair by pair, and the goals beside them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from benchmarks.launches import Launch
from zerobench.report.stats import median_interval

GOAL_STEPS = 0.99
GOAL_PROCESS = 1.1
GOAL_SAMPLER_CPU = 0.98
GOAL_SAMPLER_GPU = 0.995

PARTS_OF_A_PROCESS: tuple[tuple[str, Callable[[Launch], float]], ...] = (
    ("start: launcher, imports, process group", lambda launch: launch.start_s),
    ("build: model and engine", lambda launch: launch.build_s),
    ("rest: pauses, records, exit", lambda launch: launch.rest_s),
    ("beyond the steps (sum of these)", lambda launch: launch.beyond_s),
    ("left out: tracked steps", lambda launch: launch.tracked_s),
    ("left out: untimed and timed steps", lambda launch: launch.untimed_s + launch.timed_s),
)


def speed_table(launches: Sequence[Launch], strategies: Sequence[str]) -> Table:
    """Part a: steps per second of both sides."""
    table = Table(title="a. steps per second, zerobench / bare DeepSpeed loop")
    _columns(table, "strategy", "zerobench's figure", "bare", "zerobench", "ratio", "95 % interval", "goal")
    figures: tuple[tuple[str, Callable[[Launch], float]], ...] = (
        ("sustained", lambda launch: launch.steps_per_s),
        ("as recorded", lambda launch: launch.recorded_steps_per_s),
    )
    for strategy in strategies:
        for name, figure in figures:
            bare, ours = _values(launches, strategy, "bare", figure), _values(launches, strategy, "zerobench", figure)
            ratios = paired_ratios(ours, bare)
            medians = (f"{statistics.median(values):.3f}" for values in (bare, ours))
            table.add_row(strategy, name, *medians, *summary(ratios), f">= {GOAL_STEPS}")
    return table


def process_table(launches: Sequence[Launch], strategies: Sequence[str]) -> Table:
    """Part b: where the wall-clock time of the whole process went, medians of each part."""
    table = Table(title="b. seconds of the whole process, zerobench / bare DeepSpeed loop")
    _columns(table, "strategy", "what for", "bare", "zerobench", "ratio", "95 % interval", "goal")
    for strategy in strategies:
        for name, figure in PARTS_OF_A_PROCESS:
            bare, ours = _values(launches, strategy, "bare", figure), _values(launches, strategy, "zerobench", figure)
            medians = [f"{statistics.median(values):.2f}" for values in (bare, ours)]
            counts = name.startswith("beyond")
            ratio = (*summary(paired_ratios(ours, bare)), f"< {GOAL_PROCESS}") if counts else ("", "", "")
            table.add_row(strategy, name, *medians, *ratio, style="bold" if counts else "", end_section=False)
        table.add_section()
    return table


def sampler_table(blocks: dict[str, Any], *, on_gpu: bool) -> Table:
    """Part c: seconds of the blocks with the sampler off over those with it on, which is the ratio of the rates."""
    ratios = paired_ratios(blocks["off_s"], blocks["on_s"])
    driver = "stand-in driver, 8 GPUs, 20 us a call" if blocks["standin"] else "NVIDIA driver"
    table = Table(title=f"c. steps per second, NVML sampler on / off ({driver})")
    _columns(table, "pairs of blocks", "off: block", "on: block", "ratio", "95 % interval", "goal")
    medians = (f"{statistics.median(blocks[kind]):.3f} s" for kind in ("off_s", "on_s"))
    goal = GOAL_SAMPLER_GPU if on_gpu else GOAL_SAMPLER_CPU
    table.add_row(str(len(ratios)), *medians, *summary(ratios), f">= {goal}")
    return table


def sampler_lines(blocks: dict[str, Any]) -> str:
    """What shows that the sampler did sample: sweeps taken against those due, and its largest gap."""
    summaries = blocks["summaries"]
    gaps = [told["largest_gap_s"] for told in summaries if told["largest_gap_s"] is not None]
    samples = sum(told["num_samples"] for told in summaries)
    devices = max(len(told["devices"]) for told in summaries)
    faults = sorted({fault for told in summaries for fault in told["faults"]})
    interval_ms = summaries[0]["interval_s"] * 1000 if summaries[0]["interval_s"] else None
    gap = f"{max(gaps) * 1000:.0f} ms" if gaps else "unknown"
    lines = f"sampler: {samples} samples of {devices} devices, every {interval_ms} ms; largest gap {gap}"
    return "\n".join([lines, *(f"sampler: {fault}" for fault in faults)])


def paired_ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """One ratio for each pair."""
    return [ours / theirs for ours, theirs in zip(numerators, denominators, strict=True)]


def summary(ratios: Sequence[float]) -> tuple[str, str]:
    """The median, and the interval that holds the true one; their range where too few pairs were taken for that."""
    interval = median_interval(ratios)
    if interval is None:
        return f"{statistics.median(ratios):.3f}", f"(range {min(ratios):.3f} to {max(ratios):.3f} of {len(ratios)})"
    return f"{statistics.median(ratios):.3f}", f"{interval[0]:.3f} to {interval[1]:.3f}"


def _values(launches: Sequence[Launch], strategy: str, side: str, figure: Callable[[Launch], float]) -> list[float]:
    """The figure of each launch of one side, by pair."""
    chosen = [launch for launch in launches if (launch.strategy, launch.side) == (strategy, side)]
    return [figure(launch) for launch in sorted(chosen, key=lambda launch: launch.pair)]


def _columns(table: Table, *names: str) -> None:
    for name in names:
        table.add_column(name, justify="left" if name in {"strategy", "zerobench's figure", "what for"} else "right")
