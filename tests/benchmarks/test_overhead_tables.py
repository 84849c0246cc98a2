"""What overhead.py prints, from launches whose times are known."""

from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from benchmarks.launches import Launch
from benchmarks.overhead_tables import (
    ledger_table,
    process_table,
    sampler_lines,
    sampler_table,
    speed_table,
    summary,
    watched_table,
)


def launch(side: str, pair: int, **times: float | None) -> Launch:
    """Ten timed steps; 10 s until the first of any kind, and 1 s after the last."""
    usual: dict[str, Any] = {
        "wall_s": 26.0,
        "start_s": 6.0,
        "build_s": 4.0,
        "tracked_s": 0.0,
        "untimed_s": 5.0,
        "timed_s": 10.0,
        "num_timed": 10,
        "num_params": 1,
        "recorded_s": None,
    }
    return Launch(side=side, strategy="zero2", pair=pair, **(usual | times))


def shown(table: Table, width: int = 140) -> list[str]:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table)
    return capture.get().splitlines()


def cells(table: Table, first: str, second: str) -> list[str]:
    """The row that begins with these cells."""
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in shown(table) if "│" in line]
    (found,) = [row for row in rows if row[:2] == [first, second]]
    return found[2:]


def test_each_pair_gives_a_ratio_and_the_middle_one_is_shown() -> None:
    launches = [launch("bare", pair) for pair in (2, 0, 1)]
    launches += [launch("zerobench", pair, timed_s=10 / ratio) for pair, ratio in enumerate((0.5, 0.8, 1.25))]
    row = cells(speed_table(launches), "zero2", "sustained")
    assert row == ["1.000", "0.800", "0.800", "0.500 to 1.250*", ">= 0.99"]


def test_the_recorded_rate_counts_the_steps_by_themselves() -> None:
    launches = [launch("bare", 0), launch("zerobench", 0, timed_s=12.5, recorded_s=8.0)]
    assert cells(speed_table(launches), "zero2", "sustained")[:3] == ["1.000", "0.800", "0.800"]
    assert cells(speed_table(launches), "zero2", "recorded")[:3] == ["1.000", "1.250", "1.250"]


def test_no_step_counts_as_time_beyond_the_steps_and_tracked_ones_are_shown_apart() -> None:
    launches = [launch("bare", 0), launch("zerobench", 0, wall_s=36.0, tracked_s=8.9)]
    table = process_table(launches)
    assert cells(table, "zero2", "beyond steps") == ["11.00", "12.10", "1.100", "1.100 to 1.100*", "< 1.1"]
    assert cells(table, "zero2", "rest")[:2] == ["1.00", "2.10"]
    assert cells(table, "zero2", "(tracked)")[:2] == ["0.00", "8.90"]


def test_six_ratios_give_an_interval_and_five_their_range() -> None:
    assert summary([1.0, 1.1, 1.2, 1.3, 1.4, 1.5]) == ("1.250", "1.000 to 1.500")
    assert summary([1.0, 1.1, 1.2, 1.3, 1.4]) == ("1.200", "1.000 to 1.400*")


@pytest.mark.parametrize(("on_gpu", "goal"), [(False, ">= 0.98"), (True, ">= 0.995")])
def test_a_slower_block_with_the_sampler_on_is_a_ratio_below_one(on_gpu: bool, goal: str) -> None:
    blocks = {"on_s": [2.0, 2.0], "off_s": [1.9, 1.8], "summaries": [], "standin": False}
    assert cells(sampler_table(blocks, on_gpu=on_gpu), "2", "1.850 s") == ["2.000 s", "0.925", "0.900 to 0.950*", goal]


def test_a_step_under_the_ledger_is_held_against_one_without() -> None:
    blocks = {"on_s": [3.0, 5.0], "off_s": [2.0, 2.0], "rows": [40, 40], "block_steps": 2}
    assert cells(ledger_table(blocks), "2", "1.000 s") == ["2.000 s", "2.000", "1.500 to 2.500*", "none"]


def test_the_line_below_shows_that_the_sampler_did_sample() -> None:
    told = {"interval_s": 0.01, "num_samples": 300, "devices": [{}, {}], "faults": []}
    summaries = [told | {"largest_gap_s": 0.012}, told | {"largest_gap_s": 0.031}]
    blocks = {"standin": True, "summaries": summaries, "cores": [0.012, 0.016]}
    assert sampler_lines(blocks) == (
        "sampler: 600 samples of 2 devices of a stand-in driver (20 us a call), every 10 ms; largest gap 31 ms; "
        "1.4% of one core"
    )


def test_a_sampler_that_took_no_sample_says_why() -> None:
    told = {"interval_s": None, "largest_gap_s": None, "num_samples": 0, "devices": [], "faults": ["no permission"]}
    lines = sampler_lines({"standin": False, "summaries": [told], "cores": [0.0]}).splitlines()
    assert lines == [
        "sampler: 0 samples of 0 devices of the NVIDIA driver, never; largest gap unknown; 0.0% of one core",
        "sampler: no permission",
    ]


def test_the_tables_fit_eighty_columns() -> None:
    launches = [launch(side, 0) for side in ("bare", "zerobench")]
    for table in (speed_table(launches), process_table(launches)):
        lines = shown(table, width=80)
        assert max(map(len, lines)) <= 80
        assert any("0.99" in line or "< 1.1" in line for line in lines)


def test_the_live_views_ratio_is_that_of_rates_and_pairs_its_runs() -> None:
    runs = [{"view": "piped", "pair": pair, "timed_s": 2.0} for pair in (1, 0)]
    runs += [{"view": "live", "pair": pair, "timed_s": seconds} for pair, seconds in enumerate((4.0, 2.5))]
    row = cells(watched_table(runs, 10), "2", "0.200 s")
    assert row == ["0.325 s", "0.650", "0.500 to 0.800*", ">= 0.99"]
