"""What a trial is compared with, and what it is not."""

from typing import Any

import pytest

from tests.report.figures.strategies.figures import WEIGHTS, by_label, figures, rows, spec
from zerobench.report.figures.strategies.rows import is_comparison

SINGLE = spec("single", 1)


def test_speed_up_is_the_single_process_step_over_the_trials_and_efficiency_that_over_the_ranks():
    found = rows(figures(SINGLE, 2.0), figures(spec("ddp", 4), 0.8))
    row = by_label(found, "ddp n4")
    assert (row.speed_up, row.efficiency) == (2.5, 0.625)
    assert by_label(found, "single n1").speed_up == 1.0


def test_of_several_single_processes_with_the_same_global_batch_the_fastest_counts():
    slow = spec("single", 1, micro_batch_size=12, gradient_accumulation_steps=2)
    found = rows(figures(slow, 4.0), figures(SINGLE, 2.0), figures(spec("ddp"), 1.0))
    assert by_label(found, "ddp n2").speed_up == 2.0
    assert [row.speed_up for row in found[:2]] == [0.5, 1.0]


@pytest.mark.parametrize(
    "other",
    [
        {"batch": 12},
        {"sequence_length": 50},
        {"precision": "bf16"},
        {"optimizer": "sgd"},
        {"activation_checkpointing": True},
        {"attention": "eager"},
        {"threads_per_rank": 1},
        {"compile": "blocks"},
        {"cross_entropy": "chunked"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_did_other_work_or_had_other_means_is_not_compared(other: dict[str, Any]):
    assert [row.label for row in rows(figures(SINGLE), figures(spec("ddp", 2, **other)))] == ["single n1"]


def test_steps_whose_throughput_is_void_have_no_speed_up_and_are_no_reference():
    ddp = figures(spec("ddp"), 1.0)
    assert by_label(rows(figures(SINGLE, 2.0), figures(spec("ddp"), 1.0, tokens_per_s=None)), "ddp n2").speed_up is None
    assert by_label(rows(figures(SINGLE, 2.0, tokens_per_s=None), ddp), "ddp n2").speed_up is None


def test_weak_scaling_is_told_where_the_run_has_a_single_process_with_one_ranks_share():
    share = figures(spec("single", 1, batch=12), 1.0)
    whole, ddp = figures(SINGLE, 2.0), figures(spec("ddp", 2), 1.25)
    assert by_label(rows(share, whole, ddp), "ddp n2").weak_efficiency == pytest.approx(0.8)
    assert by_label(rows(whole, ddp), "ddp n2").weak_efficiency is None


def test_memory_is_saved_against_ddp_on_as_many_ranks_and_a_server_saves_none():
    server = spec("parameter-server", 2)
    found = rows(
        figures(SINGLE),
        figures(spec("ddp", 2)),
        figures(spec("ddp", 4), states=(WEIGHTS, WEIGHTS, WEIGHTS)),
        figures(server, states=(WEIGHTS, WEIGHTS, 0)),
        figures(server, None, role="server", num_ranks=1),
        figures(spec("fsdp", 2), states=(WEIGHTS // 2, WEIGHTS // 2, WEIGHTS)),
    )
    assert [row.saved_fraction for row in found] == [0.0, 0.0, 0.0, 0.5, 0.0, 0.5]
    assert [row.verdict for row in found if row.figures.is_server] == ["-"]


def test_without_ddp_nothing_is_said_of_what_is_saved():
    assert [row.saved_fraction for row in rows(figures(SINGLE), figures(spec("fsdp")))] == [None, None]


def test_zero_beside_a_single_process_is_no_comparison_and_neither_is_a_run_without_one():
    assert not is_comparison(rows(figures(SINGLE), figures(spec("zero3"))))
    assert not is_comparison(rows(figures(spec("ddp")), figures(spec("fsdp"))))
    assert is_comparison(rows(figures(SINGLE), figures(spec("zero3")), figures(spec("tensor"))))


def test_the_waiting_that_a_strategy_knows_stands_in_where_no_library_told():
    told = figures(spec("ddp"), exposed_fraction=0.2, wait_fraction=0.5)
    silent = figures(spec("ddp"), exposed_fraction=None, wait_fraction=0.5)
    assert (told.compared[0].sync_fraction, silent.compared[0].sync_fraction) == (0.2, 0.5)
