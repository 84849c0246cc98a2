"""Two runs side by side: which trials are the same, what may be said of memory and of speed, what the gate does."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.report.compare.runs import (
    BASE_S,
    BIG_BUCKET,
    OUT_OF_MEMORY,
    SLOWER_S,
    compared,
    cpu_repeats,
    environment,
    lay_out,
    repeats,
    with_ranks_of,
)
from tests.report.sample_predictions import foretelling
from tests.report.sample_run import SampleTrial, completed_trial, failed_trial, skipped_trial, spec
from tests.tools.known import known
from tests.tools.refusals import one_line
from zerobench.records import Category, Place, StepKind
from zerobench.report.compare.comparison import Comparison, compare
from zerobench.report.compare.environment import hardware_warnings
from zerobench.report.compare.gate import Verdict, judge, parse_limits, refusal
from zerobench.report.tables.two_runs_speed import speed_parts
from zerobench.store import load_run

SMALL = spec("zero1", gpus_per_node=1)


def verdict(comparison: Comparison, limit: str) -> Verdict:
    [found] = judge(comparison, parse_limits(limit))
    return found


def grown_by(trial: SampleTrial, nbytes: int, category: Category = Category.ACTIVATIONS) -> SampleTrial:
    """The same trial with so much more of one category at every peak of the device."""
    rows = [
        row.model_copy(update={"at_peak_bytes": (row.at_peak_bytes or 0) + nbytes})
        if row.place is Place.DEVICE and row.category in {category, Category.TOTAL} and row.step is StepKind.STEADY
        else row
        for row in trial.ranks[0].memory
    ]
    return trial.with_ranks(memory=rows)


def test_trials_are_the_same_by_their_work_and_not_by_their_folder_on_nvme(tmp_path: Path) -> None:
    swapped = {"gpus_per_node": 1, "offload_optimizer": "nvme"}
    comparison = compared(
        tmp_path,
        [completed_trial(spec("zero3", nvme_path="/old", **swapped)), completed_trial(SMALL)],
        [completed_trial(spec("zero3", nvme_path="/new", **swapped)), completed_trial(spec("zero2", gpus_per_node=1))],
    )
    assert [same.label for same in comparison.same] == ["zero3 opt=nvme"]
    assert (comparison.only_base, comparison.only_new) == (["zero1"], ["zero2"])


def test_two_devices_in_one_run_are_two_trials_and_not_repeats(tmp_path: Path) -> None:
    swapped = {"gpus_per_node": 1, "offload_optimizer": "nvme"}
    trials = [completed_trial(spec("zero3", nvme_path=path, **swapped)) for path in ("/a", "/b")]
    comparison = compared(tmp_path, trials, trials)
    assert [len(same.base) for same in comparison.same] == [1, 1]


def test_a_prediction_is_never_held_against_a_measurement(tmp_path: Path) -> None:
    real = completed_trial(SMALL)
    comparison = compared(tmp_path, [real], [foretelling(real, "simulated", 1.0)])
    assert comparison.same == []
    assert len(comparison.only_base) == len(comparison.only_new) == 1


def test_a_difference_of_memory_is_exact_and_its_category_named(tmp_path: Path) -> None:
    asked = spec("zero2", gpus_per_node=2)
    grown = with_ranks_of(asked, completed_trial(spec("zero2", gpus_per_node=2, ds_config=BIG_BUCKET)))
    comparison = compared(tmp_path, [completed_trial(asked)], [grown])
    steady = comparison.same[0].memory[0]
    assert steady.where == ("device", StepKind.STEADY)
    assert steady.more_bytes == 2 * (500_000_000 - 1_000_000)
    assert [(one.category, one.more_bytes) for one in steady.differences] == [
        (Category.REDUCE_BUFFERS, steady.more_bytes)
    ]


def test_growth_is_a_fraction_of_what_was_there_and_in_bytes_where_nothing_was(tmp_path: Path) -> None:
    base = completed_trial(SMALL)
    grown = compared(tmp_path, [base], [grown_by(base, 2**20)]).same[0].memory[0]
    assert grown.growth == grown.fraction == 2**20 / grown.base.instant.total_bytes
    from_nothing = replace(grown, base=replace(grown.base, instant=replace(grown.base.instant, total_bytes=0)))
    assert from_nothing.fraction is None
    assert from_nothing.growth == grown.new.instant.total_bytes


def test_equal_runs_are_equal_to_the_byte_and_pass_a_limit_of_nothing(tmp_path: Path) -> None:
    trials = repeats(SMALL, BASE_S)
    comparison = compared(tmp_path, trials, trials)
    assert all(change.is_equal for change in comparison.same[0].memory)
    assert all(one.passed for one in judge(comparison, parse_limits("memory:0%,speed:0%")))


def test_repeats_that_differ_are_stood_for_by_the_middle_one_and_their_range_is_kept(tmp_path: Path) -> None:
    base = repeats(SMALL, BASE_S[:3])
    new = [grown_by(trial, nbytes) for trial, nbytes in zip(base, (9000, 100, 300), strict=True)]
    change = compared(tmp_path, base, new).same[0].memory[0]
    assert (change.more_bytes, change.new.spread_bytes, change.base.spread_bytes) == (300, 8900, 0)
    assert change.new.middle.spec.repeat == 2
    assert change.is_within_spread


def test_of_two_repeats_the_smaller_one_stands_for_both(tmp_path: Path) -> None:
    base = repeats(SMALL, BASE_S[:2])
    new = [grown_by(trial, nbytes) for trial, nbytes in zip(base, (300, 100), strict=True)]
    assert compared(tmp_path, base, new).same[0].memory[0].more_bytes == 100


def test_cpu_ranks_are_held_to_their_resident_size_too(tmp_path: Path) -> None:
    base = cpu_repeats(SMALL, BASE_S[:1])
    rank = base[0].ranks[0]
    process = [row.model_copy(update={"peak_rss_bytes": 2 * (row.peak_rss_bytes or 0)}) for row in rank.process_memory]
    failures = verdict(compared(tmp_path, base, [base[0].with_ranks(process_memory=process)]), "memory:50%").failures
    assert [line.partition(" peak ")[0] for line in failures] == ["zero1, resident", "zero1, resident start-up"]


def test_host_memory_is_compared_where_states_are_kept_there_and_only_there(tmp_path: Path) -> None:
    trials = [completed_trial(SMALL), completed_trial(spec("zero3", gpus_per_node=1, offload_optimizer="cpu"))]
    comparison = compared(tmp_path, trials, trials)
    places = [{change.where[0] for change in same.memory} for same in comparison.same]
    assert places == [{"device", "reserved", "used"}, {"device", "reserved", "used", "host"}]


@pytest.mark.parametrize(
    ("limit", "passes"), [("memory:1MiB", False), ("memory:2MiB", True), ("memory:0%", False), ("memory:50%", True)]
)
def test_memory_fails_above_its_limit_and_not_at_it(tmp_path: Path, limit: str, passes: bool) -> None:
    base = completed_trial(SMALL)
    comparison = compared(tmp_path, [base], [grown_by(base, 2 * 2**20)])
    found = verdict(comparison, limit)
    assert (found.passed, found.num_judged) == (passes, 1)
    assert passes or "device peak" in found.failures[0]
    assert passes or "mostly activations" in found.failures[0]


def test_growth_is_explained_by_what_grew_though_something_else_shrank_by_more(tmp_path: Path) -> None:
    base = grown_by(completed_trial(SMALL), 3 * 2**20, Category.GRADIENTS)
    new = completed_trial(SMALL)
    for category in (Category.ACTIVATIONS, Category.TEMPORARIES):
        new = grown_by(new, 2 * 2**20, category)
    [failure] = verdict(compared(tmp_path, [base], [new]), "memory:0%").failures
    assert "+1.00 MiB" in failure
    assert failure.endswith("mostly activations")


def test_less_memory_and_faster_steps_pass(tmp_path: Path) -> None:
    base = [grown_by(trial, 2**30) for trial in repeats(SMALL, SLOWER_S)]
    comparison = compared(tmp_path, base, repeats(SMALL, BASE_S))
    assert known(comparison.same[0].speed).verdict == "faster"
    assert all(one.passed for one in judge(comparison, parse_limits("memory:0%,speed:0%")))


@pytest.mark.parametrize(("limit", "passes"), [("speed:5%", False), ("speed:10%", True)])
def test_speed_fails_where_a_significant_slowdown_exceeds_its_limit(tmp_path: Path, limit: str, passes: bool) -> None:
    found = verdict(compared(tmp_path, repeats(SMALL, BASE_S), repeats(SMALL, SLOWER_S)), limit)
    assert (found.passed, found.num_judged) == (passes, 1)


def test_a_slowdown_beyond_the_limit_that_may_be_chance_passes(tmp_path: Path) -> None:
    noisy = repeats(SMALL, (0.20, 0.35, 0.21, 0.34)), repeats(SMALL, (0.36, 0.22, 0.33, 0.23))
    comparison = compared(tmp_path, *noisy)
    assert known(comparison.same[0].speed).verdict == "not shown"
    assert verdict(comparison, "speed:1%").passed


def test_repeats_are_the_values_that_are_tested_and_not_their_steps(tmp_path: Path) -> None:
    speed = known(compared(tmp_path, repeats(SMALL, BASE_S), repeats(SMALL, SLOWER_S)).same[0].speed)
    assert speed.over_processes
    assert speed.base_s == pytest.approx([1.01 * seconds for seconds in BASE_S])  # steps are 1.00, 1.01 and 1.02 of it
    assert speed.change.p_value == pytest.approx(2 / 70)


@pytest.mark.parametrize("sides", [(1, 1), (1, 4), (3, 3)])
def test_a_speed_gate_that_can_never_fire_is_refused(tmp_path: Path, sides: tuple[int, int]) -> None:
    comparison = compared(tmp_path, repeats(SMALL, BASE_S[: sides[0]]), repeats(SMALL, SLOWER_S[: sides[1]]))
    speed = known(comparison.same[0].speed)
    assert speed.verdict == ("too few" if min(sides) > 1 else "steps only")
    assert speed.over_processes == (min(sides) > 1)
    refused = known(refusal(judge(comparison, parse_limits("speed:1%"))))
    assert f"{sides[0]} and {sides[1]} repeats" in refused
    assert "run both with --repeats 4 or more" in refused


def test_trials_that_a_gate_cannot_judge_are_named_beside_those_it_can(tmp_path: Path) -> None:
    other = completed_trial(spec("zero2", gpus_per_node=1))
    comparison = compared(tmp_path, [*repeats(SMALL, BASE_S), other], [*repeats(SMALL, BASE_S), other])
    found = verdict(comparison, "speed:5%")
    assert (found.num_judged, refusal([found])) == (1, None)
    assert [line.partition(",")[0] for line in found.not_judged] == ["zero2"]


def test_void_throughput_is_not_compared(tmp_path: Path) -> None:
    new = [completed_trial(one.spec, step_s=0.4, alloc_retries=2) for one in repeats(SMALL, BASE_S)]
    comparison = compared(tmp_path, repeats(SMALL, BASE_S), new)
    assert known(comparison.same[0].speed).verdict == "void"
    assert verdict(comparison, "speed:5%").not_judged == ["zero1, its throughput is void: 2 allocator retries"]


@pytest.mark.parametrize("limit", ["memory:90%", "speed:90%"])
def test_a_trial_that_stops_completing_fails_every_gate(tmp_path: Path, limit: str) -> None:
    base = repeats(SMALL, BASE_S)
    comparison = compared(tmp_path, base, [*base[:3], failed_trial(base[3].spec, OUT_OF_MEMORY)])
    assert verdict(comparison, limit).failures == [
        "zero1, completed in BASE, 3 completed, 1 out of device memory in NEW"
    ]


def test_a_trial_that_the_new_run_never_ended_fails(tmp_path: Path) -> None:
    trial = completed_trial(SMALL)
    paths = [lay_out(tmp_path, name, [trial]) for name in ("base", "new")]
    (paths[1] / "trials" / SMALL.trial_id / "record.json").unlink()
    found = verdict(compare(*map(load_run, paths)), "memory:2%")
    assert found.failures == ["zero1, completed in BASE, not ended in NEW"]


def test_what_failed_or_was_skipped_before_and_after_fails_no_gate(tmp_path: Path) -> None:
    trials = [failed_trial(SMALL, OUT_OF_MEMORY), skipped_trial(spec("zero2"), "rule"), completed_trial(spec("zero3"))]
    found = verdict(compared(tmp_path, trials, trials), "memory:2%")
    assert (found.passed, found.num_judged, found.not_judged) == (True, 1, [])


def test_losses_that_differ_between_the_runs_are_found(tmp_path: Path) -> None:
    comparison = compared(tmp_path, [completed_trial(SMALL)], [completed_trial(SMALL, loss_error=0.3)])
    assert comparison.same[0].losses_apart == pytest.approx((0.3, 2e-2))
    agreeing = compared(tmp_path / "more", [completed_trial(SMALL)], [completed_trial(SMALL)])
    assert agreeing.same[0].losses_apart is None


def with_norms(norms: list[float | None], **fields: Any) -> SampleTrial:
    return completed_trial(SMALL).with_ranks(grad_norms=norms, **fields)


def test_what_rounding_became_after_training_turned_unstable_is_no_difference(tmp_path: Path) -> None:
    base = with_norms([4.0, 3.0, 20.0, 2.0], losses=[9.0, 8.0, 7.0, 6.0])
    comparison = compared(tmp_path, [base], [with_norms([4.0, 3.0, 9.0, 6.0], losses=[9.0, 8.0, 5.0, 3.0])])
    assert (comparison.same[0].losses_apart, comparison.same[0].norms_apart) == (None, None)
    early = compared(tmp_path / "early", [base], [with_norms([4.0, 6.0, 20.0, 2.0], losses=[9.0, 8.5, 7.0, 6.0])])
    assert early.same[0].losses_apart == pytest.approx((0.5, 2e-2))
    assert early.same[0].norms_apart == pytest.approx((1.0, 0.1))


def test_gradients_of_another_scale_are_found_though_no_loss_differs(tmp_path: Path) -> None:
    """As AdamW hides it: it divides by what the gradients are multiplied with."""
    comparison = compared(tmp_path, [with_norms([1.0, 2.0, None])], [with_norms([2.0, 4.0, 1.0])])
    assert comparison.same[0].losses_apart is None
    assert comparison.same[0].norms_apart == pytest.approx((1.0, 0.1))
    [part] = [part for part in speed_parts(comparison) if "radient" in part.title]
    assert part.title == "Gradient norms that differ between the runs"
    assert list(part.points) == ["zero1: by 1 (tolerance 0.1)"]
    agreeing = compared(tmp_path / "more", [with_norms([1.0, None])], [with_norms([1.01, 7.0])])
    assert agreeing.same[0].norms_apart is None
    older = compared(tmp_path / "older", [with_norms([])], [with_norms([1.0])])
    assert older.same[0].norms_apart is None


def test_what_differs_between_the_environments_is_found_and_hardware_is_a_warning(tmp_path: Path) -> None:
    recorded = environment(deepspeed="0.19.8")
    recorded["gpus"] = [{"name": "NVIDIA H200"}] * 8
    recorded["driver"] = None
    trials = [completed_trial(SMALL)]
    runs = lay_out(tmp_path, "base", trials, environment()), lay_out(tmp_path, "new", trials, recorded)
    facts = compare(*map(load_run, runs)).facts
    assert [(fact.name, fact.base, fact.new) for fact in facts if fact.differs] == [
        ("deepspeed", "0.19.7", "0.19.8"),
        ("driver", "580.65.06", None),
        ("CUDA of driver", "13.0", None),
        ("GPUs", "8 x NVIDIA H100 80GB HBM3", "8 x NVIDIA H200"),
    ]
    assert hardware_warnings(facts) == [
        "different hardware: GPUs: 8 x NVIDIA H100 80GB HBM3 in BASE, 8 x NVIDIA H200 in NEW"
    ]


@pytest.mark.parametrize("recorded", [{}, {"versions": 3, "gpus": "x", "driver": [], "machine": {"cpu": None}}])
def test_an_environment_in_another_form_is_not_recorded_and_no_error(
    tmp_path: Path, recorded: dict[str, object]
) -> None:
    trials = [completed_trial(SMALL)]
    runs = lay_out(tmp_path, "base", trials, recorded), lay_out(tmp_path, "new", trials, recorded)
    assert [fact.name for fact in compare(*map(load_run, runs)).facts if fact.base is not None] == ["devices of ranks"]


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("", "limit missing; for example memory:2%,speed:5% or memory:100MiB"),
        ("memory", "'memory': limit missing"),
        ("memry:2%", "did you mean 'memory'? choices: memory, speed"),
        ("memory:2", "unit missing"),
        ("memory:-2%", "'-2' is not a percentage of 0 or more"),
        ("memory:nan%", "'nan' is not a percentage"),
        ("memory:2 parsecs", "is not a number of bytes"),
        ("memory:100G", "is ambiguous"),
        ("speed:100MiB", "speed takes a percentage"),
        ("speed:x%", "'x' is not a percentage"),
    ],
)
def test_a_limit_that_is_none_is_refused_in_one_line_that_says_what_to_write(written: str, words: str) -> None:
    with one_line(words):
        parse_limits(written)


def test_limits_are_read_as_shares_and_as_sizes() -> None:
    found = [(one.metric, one.fraction, one.nbytes) for one in parse_limits(" memory:2.5% ,memory:100MiB,speed:5%")]
    assert found == [("memory", 0.025, None), ("memory", None, 100 * 2**20), ("speed", 0.05, None)]


def test_predictions_take_no_part_in_a_speed_gate(tmp_path: Path) -> None:
    predicted = foretelling(completed_trial(SMALL), "simulated", 1.0)
    both = compared(tmp_path, [*repeats(SMALL, BASE_S), predicted], [*repeats(SMALL, BASE_S), predicted])
    found = verdict(both, "speed:5%")
    assert (found.num_judged, found.not_judged) == (1, [])
    alone = compared(tmp_path / "alone", [predicted], [predicted])
    assert "no trial timed steps in both runs" in (refusal([verdict(alone, "speed:5%")]) or "")
    assert verdict(alone, "memory:0%").num_judged == 1


@pytest.mark.parametrize("count", [1, 2])
def test_a_memory_gate_without_any_peak_is_refused(tmp_path: Path, count: int) -> None:
    trials = [
        completed_trial(spec(f"zero{stage}", gpus_per_node=1)).with_ranks(memory=[], device_memory=[])
        for stage in range(count)
    ]
    refused = known(refusal(judge(compared(tmp_path, trials, trials), parse_limits("memory:2%"))))
    assert "cannot be checked" in refused
