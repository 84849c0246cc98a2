"""Each claim is judged by the run's numbers, and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.report.figures.strategies.figures import WEIGHTS, figures, rows, spec
from zerobench.report.figures.strategies.claim import Claim, Verdict
from zerobench.report.figures.strategies.claims import claims
from zerobench.report.figures.trial import TrialFigures

SINGLE = figures(spec("single", 1), 2.0)
RING = 1.0 * WEIGHTS
"""2 (n-1)/n of the weights on two ranks."""


def ddp(**known: object) -> TrialFigures:
    return figures(spec("ddp"), known.pop("step_s", 1.05), **{"sent_bytes": RING, "received_bytes": RING, **known})  # type: ignore[arg-type]


def claim(text: str, *sides: TrialFigures, **more: object) -> Claim:
    return next(one for one in claims(rows(*sides, **more)) if text in one.text)  # type: ignore[arg-type]


def verdict(text: str, *sides: TrialFigures, **more: object) -> Verdict:
    return claim(text, *sides, **more).verdict


def test_a_run_of_a_single_process_alone_judges_nothing_and_says_what_is_missing():
    found = claims(rows(SINGLE))
    assert {one.verdict for one in found} == {Verdict.UNJUDGED}
    assert all(len(one.measured) > 15 for one in found)


def test_losses_that_disagree_speak_against_exactness_and_their_trials_are_asked_nothing_else():
    sides = (SINGLE, ddp())
    assert verdict("Exact strategies", *sides, parity={"ddp n2": 1e-6}) is Verdict.HOLDS
    assert verdict("Exact strategies", *sides, parity={"ddp n2": 1e-2}) is Verdict.FAILS
    assert verdict("saves no memory", *sides, parity={"ddp n2": 1e-2}) is Verdict.UNJUDGED


def test_n_times_as_fast_takes_an_efficiency_of_nine_tenths_of_every_trial():
    assert verdict("n times as fast", SINGLE, ddp(step_s=1.05)) is Verdict.HOLDS
    slow = figures(spec("fsdp"), 1.5)
    found = claim("n times as fast", SINGLE, ddp(step_s=1.05), slow)
    assert found.verdict is Verdict.FAILS
    assert "ddp n2, 1.90 x the speed on 2 ranks (95% efficiency)" in found.measured
    assert "fsdp n2, 1.33 x" in found.measured
    assert verdict("n times as fast", SINGLE, ddp(step_s=0.7)) is Verdict.HOLDS
    assert verdict("n times as fast", SINGLE, ddp(step_s=0.6)) is Verdict.UNJUDGED, "the single process was disturbed"


def test_data_parallelism_saves_none_where_a_rank_holds_what_the_single_process_does():
    found = claim("saves no memory", SINGLE, ddp())
    assert found.verdict is Verdict.HOLDS
    assert found.measured == "ddp n2 holds 15.26 MiB per rank, the single process 15.26 MiB"
    assert verdict("saves no memory", SINGLE, ddp(states=(WEIGHTS, 0, 0))) is Verdict.FAILS


def test_zero_divides_where_its_states_are_the_papers():
    halved = figures(spec("zero2"), states=(WEIGHTS, WEIGHTS // 2, WEIGHTS))
    whole = figures(spec("zero3"))
    assert verdict("ZeRO stages partition", SINGLE, ddp(), halved) is Verdict.HOLDS
    assert verdict("ZeRO stages partition", SINGLE, ddp(), halved, whole) is Verdict.FAILS


def test_a_state_too_large_is_not_hidden_by_one_too_small():
    uneven = figures(spec("zero1"), states=(WEIGHTS, WEIGHTS // 2, 3 * WEIGHTS // 2))
    found = claim("ZeRO stages partition", SINGLE, ddp(), uneven)
    assert found.verdict is Verdict.FAILS
    assert "(gradients at the end of backward 1.91 MiB instead of 3.81 MiB, " in found.measured
    assert "optimizer states 5.72 MiB instead of 3.81 MiB)" in found.measured


def test_an_all_reduce_is_held_against_the_ring():
    form = {"formula_sent_bytes": RING, "formula_received_bytes": RING}
    assert verdict("An all-reduce", SINGLE, ddp(**form)) is Verdict.HOLDS
    assert verdict("An all-reduce", SINGLE, ddp(**{**form, "sent_bytes": 2 * RING})) is Verdict.FAILS


def test_stages_are_held_against_what_ddp_sent():
    def sends(strategy: str, times: float) -> TrialFigures:
        return figures(spec(strategy), sent_bytes=times * RING)

    assert verdict("no more than data parallelism", SINGLE, ddp(), sends("zero1", 1.0)) is Verdict.HOLDS
    assert verdict("no more than data parallelism", SINGLE, ddp(), sends("zero1", 1.5)) is Verdict.FAILS
    assert verdict("1.5 x", SINGLE, ddp(), sends("zero3", 1.5), sends("fsdp", 1.41)) is Verdict.HOLDS
    assert verdict("1.5 x", SINGLE, ddp(), sends("fsdp", 1.5)) is Verdict.UNJUDGED
    assert verdict("FSDP communicates", SINGLE, ddp(), sends("fsdp", 1.41)) is Verdict.HOLDS
    assert verdict("FSDP communicates", SINGLE, ddp(), sends("fsdp", 1.7)) is Verdict.FAILS
    assert verdict("1.5 x", SINGLE, ddp(), sends("zero3", 1.0)) is Verdict.FAILS
    assert verdict("1.5 x", SINGLE, sends("zero3", 1.5)) is Verdict.UNJUDGED


def test_what_the_papers_count_is_all_weights_trained():
    adapters: dict[str, Any] = {"adapter": "lora-8"}
    alone = figures(spec("single", 1, **adapters), 2.0)
    few, many = (figures(spec(name, **adapters), sent_bytes=RING) for name in ("ddp", "zero3"))
    assert verdict("1.5 x", alone, few, many) is Verdict.UNJUDGED
    whole = figures(spec("zero3"), sent_bytes=1.5 * RING)
    assert verdict("1.5 x", SINGLE, alone, few, whole) is Verdict.UNJUDGED
    assert verdict("1.5 x", SINGLE, alone, few, ddp(), whole, many) is Verdict.HOLDS


def test_a_verdict_on_speed_names_the_machine_that_it_is_of():
    machine = SINGLE.compared[0].device_name
    bubble = figures(spec("pipeline", 2, batch=6, gradient_accumulation_steps=4), wait_fraction=0.2)
    for text, side in (
        ("n times as fast", figures(spec("fsdp"), 1.5)),
        ("hides its", figures(spec("fsdp"), 1.5)),
        ("Gradient compression", figures(spec("ddp", compression="fp16"), 0.9, sent_bytes=RING / 2)),
        ("Model-parallel ranks", figures(spec("tensor"), exposed_fraction=0.4)),
        ("Pipeline bubble", bubble),
    ):
        found = claim(text, SINGLE, ddp(in_flight_fraction=0.3, exposed_fraction=0.1), side)
        assert found.verdict is not Verdict.UNJUDGED, text
        assert found.measured.endswith(f" (on {machine})"), text


def server_sides(**known: object) -> tuple[TrialFigures, TrialFigures]:
    asked = spec("parameter-server", 3)
    both = {"formula_sent_bytes": WEIGHTS, "formula_received_bytes": WEIGHTS}
    moved = {"sent_bytes": WEIGHTS, "received_bytes": WEIGHTS, **both}
    twice = dict.fromkeys(moved, 2 * WEIGHTS)
    worker = figures(asked, states=(WEIGHTS, WEIGHTS, 0), staleness=0.0, num_ranks=2, **moved)
    return worker, figures(asked, None, role="server", num_ranks=1, **{**twice, **known})


def test_a_servers_traffic_and_memory_are_told_apart_from_its_workers():
    worker, server = server_sides()
    found = claim("2 x the weights", SINGLE, ddp(), worker, server)
    assert found.verdict is Verdict.HOLDS
    assert "a worker of parameter-server n3 sends 3.81 MiB and gets 3.81 MiB with 2 workers" in found.measured
    assert "the server of parameter-server n3 sends 7.63 MiB and gets 7.63 MiB" in found.measured
    assert verdict("2 x the weights", SINGLE, *server_sides(sent_bytes=WEIGHTS)) is Verdict.FAILS
    held = claim("frees its workers", SINGLE, ddp(), worker, server)
    assert held.verdict is Verdict.HOLDS
    assert "50% less than a rank of ddp; the server holds 15.26 MiB, as much as a rank of ddp" in held.measured


def test_async_is_judged_by_time_beyond_the_spread_and_by_staleness():
    def server(consistency: str, step_s: float, staleness: float) -> TrialFigures:
        return figures(spec("parameter-server", 3, consistency=consistency), step_s, staleness=staleness)

    sync = server("sync", 1.0, 0.0)
    assert verdict("asynchronous", SINGLE, sync, server("async", 0.9, 1.0)) is Verdict.HOLDS
    assert verdict("asynchronous", SINGLE, sync, server("async", 0.99, 1.0)) is Verdict.FAILS  # within the spread
    assert verdict("asynchronous", SINGLE, sync, server("async", 0.9, 0.0)) is Verdict.FAILS
    assert verdict("asynchronous", SINGLE, sync) is Verdict.UNJUDGED


def test_compression_is_held_against_plain_ddp_on_as_many_ranks():
    fp16 = figures(spec("ddp", compression="fp16"), 0.9, sent_bytes=RING / 2)
    found = claim("Gradient compression", SINGLE, ddp(step_s=1.0), fp16)
    assert found.verdict is Verdict.HOLDS
    assert found.measured == "fp16 sends 50% of the bytes, takes 90% of the time (on cpu)"
    slower = figures(spec("ddp", compression="onebit"), 1.1, sent_bytes=RING / 32)
    assert verdict("Gradient compression", SINGLE, ddp(step_s=1.0), fp16, slower) is Verdict.FAILS


def test_overlap_is_what_is_in_flight_and_not_exposed():
    assert verdict("hides its", SINGLE, ddp(in_flight_fraction=0.3, exposed_fraction=0.1)) is Verdict.HOLDS
    assert verdict("hides its", SINGLE, ddp(in_flight_fraction=0.3, exposed_fraction=0.2)) is Verdict.FAILS
    assert verdict("hides its", SINGLE, ddp()) is Verdict.UNJUDGED


def test_ranks_that_divide_the_model_are_held_against_ddps_waiting():
    cut = figures(spec("tensor"), exposed_fraction=0.4)
    assert verdict("Model-parallel ranks", SINGLE, ddp(exposed_fraction=0.1), cut) is Verdict.HOLDS
    assert verdict("Model-parallel ranks", SINGLE, ddp(exposed_fraction=0.5), cut) is Verdict.FAILS


@pytest.mark.parametrize("strategy", ["pipeline", "rpc-pipeline"])
def test_a_stages_waiting_is_held_against_the_ideal_bubble(strategy: str):
    def stage(idle: float) -> TrialFigures:
        asked = spec(strategy, 2, batch=6, gradient_accumulation_steps=4)  # eight micro-batches: 1/9
        return figures(asked, wait_fraction=idle)

    single = figures(spec("single", 1), 2.0)
    assert stage(0.1).spec.global_batch_size == 24
    found = claim("Pipeline bubble", single, stage(0.12))
    assert found.verdict is Verdict.HOLDS
    assert found.measured == f"{strategy} n2 idle for 12%, by formula 11% (on cpu)"
    assert verdict("Pipeline bubble", single, stage(0.4)) is Verdict.FAILS
    assert verdict("Pipeline bubble", single) is Verdict.UNJUDGED
