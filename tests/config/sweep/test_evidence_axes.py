"""Evidence, gpu and rank as axes: which trials they come to, what each is laid out for, and what joins what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.config.machines import CPU, EIGHT_H200
from tests.tools.refusals import one_line
from zerobench.common.errors import UserError
from zerobench.config.derived.machine import Machine
from zerobench.config.sweep.expand import NOWHERE, PlannedTrial, expand
from zerobench.config.sweep.sweep import load_sweep, shipped_sweeps
from zerobench.config.trial.trial import Evidence, TrialSpec

H200 = EIGHT_H200.model_copy(update={"num_gpus": 4, "gpu_names": EIGHT_H200.gpu_names[:4]})
FOUR_NODES = H200.model_copy(update={"num_nodes": 4})
UNKNOWN = H200.model_copy(update={"gpu_names": ("NVIDIA Abacus",) * 4})
ALL = [evidence.value for evidence in Evidence]
UNPREDICTABLE = {
    "compression_needs_values",
    "deepspeed_pipeline_needs_ranks",
    "strategy_not_in_this_world",
    "autotp_not_divisible",
    "optimizer_not_in_this_world",
}
"""Rules against simulating what depends on values, or on neighbours that answer: no sweep can avoid them."""

MULTIPLIED = {"optimizers": {"cpu_adam_needs_offload", "cpu_lion_needs_offload", "fused_adamw_needs_device_states"}}
"""What a sweep that multiplies all by all skips in every world."""


def how(planned: Sequence[PlannedTrial]) -> list[tuple[str, int, str | None]]:
    return [(t.evidence.value, t.prediction.rank, t.prediction.gpu) for t in map(of, planned)]


def of(planned: PlannedTrial) -> TrialSpec:
    return planned.trial


def layouts(planned: Sequence[PlannedTrial]) -> list[tuple[str, int, int]]:
    return [(t.evidence.value, t.num_nodes, t.gpus_per_node) for t in map(of, planned)]


def test_a_sweep_that_says_nothing_of_evidence_measures(plan: Any):
    assert how(plan({}, H200)) == [("measured", 0, None)]


def test_gpu_and_rank_are_dropped_where_they_mean_nothing_and_trials_that_then_are_the_same_are_listed_once(plan: Any):
    axes = {"world_size": 8, "evidence": ALL, "gpu": ["h200", "a100"], "rank": [0, 7]}
    assert sorted(how(plan(axes))) == [
        ("emulated", 0, "A100 SXM 80GB"),
        ("emulated", 0, "H200 SXM"),
        ("emulated", 7, "A100 SXM 80GB"),
        ("emulated", 7, "H200 SXM"),
        ("formula", 0, "A100 SXM 80GB"),
        ("formula", 0, "H200 SXM"),
        ("measured", 0, None),
        ("simulated", 0, "A100 SXM 80GB"),
        ("simulated", 0, "H200 SXM"),
        ("simulated", 7, "A100 SXM 80GB"),
        ("simulated", 7, "H200 SXM"),
        ("solo", 0, None),
        ("solo", 7, None),
    ]


def test_all_ways_to_come_by_a_figure_of_one_work_join_by_its_hash_and_have_ids_of_their_own(plan: Any):
    planned = plan({"world_size": 4, "evidence": ALL, "gpu": ["h200", "a100"], "rank": [0, 3]})
    assert len({of(one).config_hash for one in planned}) == 1
    assert len({of(one).trial_id for one in planned}) == len(planned) == 13


def test_ids_differ_by_evidence_however_long_the_model_s_name_is(plan: Any):
    model = {"family": "llama", "num_layers": 1, "hidden_size": 64, "num_heads": 1, "name": "m" * 200}
    planned = plan({"model": model, "evidence": ALL, "gpu": ["h200", "a100"], "rank": [0, 1]})
    assert len({of(one).trial_id for one in planned}) == len(planned) == 13


def test_the_last_rank_is_that_of_each_world_size(plan: Any):
    planned = plan({"world_size": [4, 8], "evidence": "solo", "rank": [0, "last"]})
    assert [(of(one).world_size, of(one).prediction.rank) for one in planned] == [(4, 0), (4, 3), (8, 0), (8, 7)]
    kept = plan({"world_size": [4, 8], "evidence": "solo", "rank": [0, 3, 7]}, exclude=[{"rank": "last"}])
    assert [(of(one).world_size, of(one).prediction.rank) for one in kept] == [(4, 0), (4, 7), (8, 0), (8, 3)]


def test_a_rank_that_the_world_does_not_have_is_skipped_with_the_numbers(plan: Any):
    [small, large] = plan({"world_size": [4, 8], "evidence": "simulated", "rank": 7})
    assert small.skipped.rule == "rank_exceeds_world"
    assert small.skipped.reason == "rank 7 of 4: ranks are numbered from 0"
    assert large.skipped is None


def test_the_single_process_plays_no_rank_of_many(plan: Any):
    planned = plan({"strategy": "single", "world_size": 8, "evidence": ["solo", "simulated"], "rank": [0, 7]})
    assert how(planned) == [("solo", 0, None), ("simulated", 0, None)]


def test_a_predicted_reference_is_a_point_like_any_other(plan: Any):
    axes = {"strategy": ["single", "zero1"], "world_size": 64, "evidence": ["measured", "simulated"]}
    planned = plan(axes)
    assert [(of(one).strategy, of(one).evidence.value, one.skipped is None) for one in planned] == [
        ("single", "measured", False),
        ("single", "simulated", True),
        ("zero1", "measured", False),
        ("zero1", "simulated", True),
    ]


@pytest.mark.parametrize(
    ("machine", "gpu", "found"),
    [
        (CPU, None, None),
        (CPU, "auto", None),
        (CPU, "none", None),
        (CPU, "h200", "H200 SXM"),
        (H200, "auto", "H200 SXM"),
        (H200, "none", None),
        (H200, "A100 SXM 40GB", "A100 SXM 40GB"),
    ],
)
def test_a_prediction_is_for_the_gpu_named_or_for_this_machine_s(
    plan: Any, machine: Machine, gpu: str | None, found: str | None
):
    assert how(plan({"evidence": "simulated", "gpu": gpu}, machine)) == [("simulated", 0, found)]


def test_without_a_gpu_named_a_prediction_is_for_this_machine_s(plan: Any):
    assert how(plan({"evidence": "formula"}, H200)) == [("formula", 0, "H200 SXM")]


def test_a_gpu_that_nobody_has_catalogued_cannot_be_predicted_unnamed(plan: Any):
    with pytest.raises(UserError, match=r"gpu: auto: evidence simulated: this machine's GPU, NVIDIA Abacus, is not in"):
        plan({"evidence": "simulated"}, UNKNOWN)
    assert how(plan({"evidence": ["simulated", "solo"], "gpu": "h200"}, UNKNOWN))[0] == ("simulated", 0, "H200 SXM")


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ({"world_size": 64}, (8, 8)),
        ({"world_size": 8}, (1, 8)),
        ({"world_size": 5}, (1, 5)),
        ({"world_size": 12}, (2, 6)),
        ({"world_size": 1024}, (128, 8)),
        ({"world_size": 13}, (13, 1)),
        ({"world_size": 1048573}, (1048573, 1)),
        ({"world_size": 64, "num_nodes": 4}, (4, 16)),
        ({"world_size": 64, "gpus_per_node": 4}, (16, 4)),
        ({"num_nodes": 4}, (4, 8)),
        ({"gpus_per_node": 16}, (1, 16)),
        ({"world_size": "auto"}, (1, 8)),
        ({}, (1, 8)),
    ],
)
@pytest.mark.parametrize("machine", [CPU, FOUR_NODES, H200])
def test_ranks_on_gpus_that_are_not_here_lie_on_nodes_of_eight_whatever_the_machine(
    plan: Any, layout: dict[str, Any], expected: tuple[int, int], machine: Machine
):
    for evidence in ("simulated", "formula"):
        [one] = plan({"evidence": evidence, "gpu": "b200"} | layout, machine)
        assert (of(one).num_nodes, of(one).gpus_per_node) == expected
        assert one.skipped is None


@pytest.mark.parametrize("evidences", [["measured", "solo", "simulated"], ["simulated", "measured", "solo"]])
@pytest.mark.parametrize(
    ("machine", "world_size", "expected"),
    [
        (CPU, 2, (1, 2)),
        (CPU, 8, (1, 8)),
        (H200, 4, (1, 4)),
        (FOUR_NODES, 8, (2, 4)),
        (FOUR_NODES, 16, (4, 4)),
        (FOUR_NODES, "auto", (4, 4)),
    ],
)
def test_predictions_of_what_this_machine_can_hold_are_laid_out_as_measured_and_join(
    plan: Any, machine: Machine, world_size: int, expected: tuple[int, int], evidences: list[str]
):
    together = plan({"evidence": evidences, "world_size": world_size}, machine)
    assert layouts(together) == [(evidence, *expected) for evidence in evidences]
    apart = [plan({"evidence": evidence, "world_size": world_size}, machine)[0] for evidence in evidences]
    assert {of(one).config_hash for one in [*together, *apart]} == {of(together[0]).config_hash}
    assert all(one.skipped is None for one in together)


def test_what_this_machine_cannot_hold_is_skipped_measured_and_run_predicted(plan: Any):
    planned = plan({"evidence": ALL, "world_size": 64}, H200)
    assert layouts(planned) == [("measured", 1, 64), *((evidence, 8, 8) for evidence in ALL[1:])]
    assert [one.skipped.rule if one.skipped else None for one in planned] == ["ranks_exceed_gpus"] + [None] * (
        len(ALL) - 1
    )


def test_a_point_about_gpus_has_the_sweep_s_axes_and_one_about_cpu_ranks_those_for_the_cpu(plan: Any):
    axes = {"model": "llama-7b", "evidence": ["measured", "simulated"], "gpu": ["none", "h200"], "world_size": 2}
    found = {machine: plan(axes, machine, on_cpu={"model": "llama-10m"}) for machine in (CPU, H200)}
    models = {machine: [(*how([one])[0], of(one).model.name) for one in found[machine]] for machine in found}
    assert models[CPU] == [
        ("measured", 0, None, "llama-10m"),
        ("simulated", 0, None, "llama-10m"),
        ("simulated", 0, "H200 SXM", "llama-7b"),
    ]
    assert models[H200] == [
        ("measured", 0, None, "llama-7b"),
        ("simulated", 0, "H200 SXM", "llama-7b"),
        ("simulated", 0, None, "llama-10m"),
    ]


def test_what_an_include_entry_adds_is_come_by_in_every_way(plan: Any):
    axes = {"evidence": ["measured", "simulated"], "gpu": "h200", "micro_batch_size": [1, 2], "world_size": 2}
    planned = plan(axes, include=[{"strategy": "zero1"}, {"strategy": "zero2", "evidence": "formula"}])
    assert [(of(t).evidence.value, of(t).strategy, of(t).micro_batch_size) for t in planned] == [
        ("measured", "zero3", 1),
        ("measured", "zero3", 2),
        ("simulated", "zero3", 1),
        ("simulated", "zero3", 2),
        ("measured", "zero1", 1),
        ("simulated", "zero1", 1),
        ("formula", "zero2", 1),
    ]


def test_an_include_entry_that_comes_to_too_many_points_in_all_evidences_is_refused(plan: Any):
    axes = {"evidence": ["solo"] * 200, "model": "llama-10m"}
    with pytest.raises(UserError, match=r"include\[0\]: the lists multiply to 20000 points"):
        plan(axes, include=[{"micro_batch_size": list(range(1, 101))}])


def test_exclude_and_filters_take_the_axes_as_every_other(plan: Any):
    axes = {"evidence": ALL, "gpu": ["h200", "a100"], "rank": [0, 1], "world_size": 2}
    kept = how(plan(axes, exclude=[{"gpu": "a100"}, {"evidence": ["solo", "emulated", "simulated"], "rank": 1}]))
    predicted = [(world, 0, "H200 SXM") for world in ("emulated", "simulated", "formula")]
    assert kept == [("measured", 0, None), ("solo", 0, None), *predicted]
    assert how(plan(axes, only=["gpu=A100"])) == [
        ("emulated", 0, "A100 SXM 80GB"),
        ("emulated", 1, "A100 SXM 80GB"),
        ("simulated", 0, "A100 SXM 80GB"),
        ("simulated", 1, "A100 SXM 80GB"),
        ("formula", 0, "A100 SXM 80GB"),
    ]
    assert how(plan(axes, only=["evidence=solo,measured"])) == [
        ("measured", 0, None),
        ("solo", 0, None),
        ("solo", 1, None),
    ]
    assert {one[:2] for one in how(plan(axes, only=["rank=1"]))} == {("solo", 1), ("emulated", 1), ("simulated", 1)}
    assert how(plan(axes, only=["gpu=null"])) == [("measured", 0, None), ("solo", 0, None), ("solo", 1, None)]
    assert len(plan(axes, only=["gpu=H200*"])) == 5


def test_exclude_takes_auto_for_this_machine_s_gpu(plan: Any):
    axes = {"evidence": "simulated", "gpu": ["h200", "a100"]}
    assert how(plan(axes, H200, exclude=[{"gpu": "auto"}])) == [("simulated", 0, "A100 SXM 80GB")]


@pytest.mark.parametrize("name", list(shipped_sweeps()))
def test_the_command_line_predicts_a_whole_shipped_sweep_beside_measuring_it(name: str):
    measured = expand(load_sweep(name, ["evidence=measured", "gpu=auto"]), CPU)
    both = expand(load_sweep(name, ["evidence=measured,simulated", "gpu=auto"]), CPU)
    simulated = [one for one in both if of(one).evidence is Evidence.SIMULATED]
    assert {of(one).config_hash for one in simulated} >= {of(one).config_hash for one in measured if not one.skipped}
    assert [one for one in both if of(one).evidence is Evidence.MEASURED] == measured
    assert {one.skipped.rule for one in simulated if one.skipped is not None} <= (
        UNPREDICTABLE | MULTIPLIED.get(name, set())
    )


def test_a_prediction_swaps_to_nowhere_and_joins_a_measurement_that_swaps_to_a_drive(plan: Any):
    axes = {"offload_optimizer": "nvme", "evidence": ALL, "nvme_path": ["/a", "/b"]}
    planned = plan(axes)
    assert [(of(one).evidence.value, of(one).nvme_path) for one in planned] == [
        ("measured", "/a"),
        ("measured", "/b"),
        ("solo", "/a"),
        ("solo", "/b"),
        ("emulated", NOWHERE),
        ("simulated", NOWHERE),
        ("formula", NOWHERE),
    ]
    assert len({of(one).config_hash for one in planned}) == 1
    assert len({of(one).trial_id for one in planned}) == 7
    without = plan({"offload_optimizer": "nvme", "evidence": "simulated"})
    assert [of(one) for one in without] == [of(planned[5])]


@pytest.mark.parametrize(
    ("axes", "told"),
    [
        (
            {"evidence": "guessed"},
            "axes: evidence: 'guessed' is not known; choices: measured, solo, emulated, simulated, formula",
        ),
        ({"evidence": "simulate"}, "axes: evidence: 'simulate' is not known; did you mean 'simulated'?"),
        ({"evidence": None}, "axes: evidence: None is not known"),
        (
            {"evidence": "simulated", "gpu": "h201"},
            "axes: gpu: 'h201' is not in the hardware catalogue; did you mean 'H200",
        ),
        ({"evidence": "simulated", "gpu": 200}, "axes: gpu: 200 is not in the hardware catalogue"),
        ({"evidence": "solo", "rank": -1}, "axes: rank: -1; choices: an integer from 0 to 1048575, or last"),
        ({"evidence": "solo", "rank": True}, "axes: rank: true; choices: an integer from 0"),
        ({"evidence": "solo", "rank": "first"}, "axes: rank: 'first'; choices: an integer from 0 to 1048575, or last"),
        (
            {"gpu": "h200"},
            (
                "gpu: H200 SXM does not apply to evidence measured; choices: emulated, simulated, formula "
                "(--set evidence=simulated)"
            ),
        ),
        ({"evidence": "solo", "gpu": "h200"}, "gpu: H200 SXM does not apply to evidence solo;"),
        (
            {"evidence": ["measured", "formula"], "rank": [0, 1]},
            "rank: 1 does not apply to evidence measured, formula;",
        ),
        ({"world_size": 0}, "axes: world_size: 0; choices: an integer from 1 to 1048576, or auto"),
        ({"world_size": 2**40}, "axes: world_size: 1099511627776; choices: an integer from 1 to 1048576, or auto"),
        (
            {"num_nodes": 2**20, "gpus_per_node": 8},
            "num_nodes 1048576, gpus_per_node 8: 8388608 ranks; at most 1048576",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_axis_value_and_choices(plan: Any, axes: dict[str, Any], told: str):
    with one_line(told):
        plan(axes)


def test_a_gpu_given_where_nothing_is_predicted_is_refused_on_the_command_line_too(plan: Any):
    with pytest.raises(UserError, match="with --set: gpu: H200 SXM does not apply to evidence measured"):
        plan({}, sets=["gpu=h200"])
    assert how(plan({}, sets=["gpu=h200", "evidence=simulated"])) == [("simulated", 0, "H200 SXM")]


def test_all_ranks_of_a_small_world_are_one_emulated_trial(plan: Any) -> None:
    axes = {"world_size": 4, "evidence": ["measured", "emulated"], "gpu": "h200", "rank": "all"}
    measured, emulated = map(of, plan(axes))
    assert (measured.evidence, measured.prediction.all_ranks) == (Evidence.MEASURED, False)
    assert (emulated.prediction.all_ranks, list(emulated.played_ranks)) == (True, [0, 1, 2, 3])
    assert emulated.trial_id != of(plan(axes | {"rank": 0})[1]).trial_id
    assert "-all-ranks-" in emulated.trial_id
    assert measured.config_hash == emulated.config_hash


@pytest.mark.parametrize(
    ("evidence", "world_size", "reason"),
    [
        ("simulated", 4, "rank all with evidence simulated: only emulated trials run all ranks; give one rank"),
        ("emulated", 16, "rank all with 16 ranks: at most 8 run together; give one rank"),
    ],
)
def test_all_ranks_that_cannot_be_played_together_are_skipped_with_the_reason(
    plan: Any, evidence: str, world_size: int, reason: str
) -> None:
    axes = {"world_size": world_size, "evidence": [evidence], "gpu": "h200", "rank": ["all", 0]}
    together, alone = plan(axes)
    assert together.skipped is not None
    assert (together.skipped.rule, together.skipped.reason) == ("all_ranks_need_emulation", reason)
    assert alone.skipped is None
